//! What goes wrong, and at which write.
//!
//! Takes numbers of writes; yields a plan that says for each write whether something happens, when, and what. A plan is data: it
//! neither sends nor waits. The numbers count from one, in the order in which the writes arrive.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use http::StatusCode;
use serde_json::Value;

use crate::orders::Latch;

/// The moment within one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The server has not seen the write.
    BeforeSend,
    /// The server has answered, the client does not know.
    AfterCommit,
    /// The client has read the reply.
    AfterReply,
}

impl When {
    /// All of them, for tests that go through each.
    pub const ALL: [Self; 3] = [Self::BeforeSend, Self::AfterCommit, Self::AfterReply];
}

/// Ends the client. Called once, from the task that carries the write.
pub type Killer = Arc<dyn Fn() + Send + Sync>;

/// What happens.
#[derive(Clone)]
pub enum Then {
    /// The client is killed. Its write gets no reply, unless it had one already.
    Kill(Killer),
    /// The write, or its reply, waits.
    Delay(Duration),
    /// The client gets this status: instead of the server's answer, or without the server being asked.
    Refuse(StatusCode),
    /// The server gets the write twice. Before sending, the client gets the second answer; after the commit, the first.
    Repeat,
    /// The client loses its connection without a reply.
    DropConnection,
    /// The client gets no answer, and the server sees the request after so long, also if the client gives it up.
    Late(Duration),
    /// The request, or its reply, waits until the latch is opened.
    Hold(Latch),
    /// The client gets this status and body.
    Answer(u16, Value),
    /// The client gets 200 and a body that comes in these pieces, and then ends.
    Pieces(Vec<&'static str>),
    /// Nothing comes back.
    Hang,
    /// The client itself panics.
    Panic,
}

impl fmt::Debug for Then {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(_) => formatter.write_str("Kill"),
            Self::Delay(time) => write!(formatter, "Delay({time:?})"),
            Self::Refuse(status) => write!(formatter, "Refuse({status})"),
            Self::Repeat => formatter.write_str("Repeat"),
            Self::DropConnection => formatter.write_str("DropConnection"),
            Self::Late(time) => write!(formatter, "Late({time:?})"),
            Self::Hold(_) => formatter.write_str("Hold"),
            Self::Answer(code, _) => write!(formatter, "Answer({code})"),
            Self::Pieces(pieces) => write!(formatter, "Pieces({})", pieces.len()),
            Self::Hang => formatter.write_str("Hang"),
            Self::Panic => formatter.write_str("Panic"),
        }
    }
}

/// One thing that goes wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The number of the write, from one.
    pub at: u64,
    /// The moment within it.
    pub when: When,
    /// What happens.
    pub then: Then,
}

/// At most one fault per write.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    faults: BTreeMap<u64, Fault>,
}

impl Plan {
    /// A plan without faults, for the run that counts the writes.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// A plan of the given faults.
    ///
    /// # Errors
    ///
    /// Refuses write number 0, two faults at one write, and anything but a kill after the reply: nothing else can happen then.
    pub fn new(faults: impl IntoIterator<Item = Fault>) -> anyhow::Result<Self> {
        let mut plan = Self::none();
        for fault in faults {
            if fault.at == 0 {
                bail!("fault {fault:?}: writes are counted from 1");
            }
            if fault.when == When::AfterReply && !matches!(fault.then, Then::Kill(_)) {
                bail!("fault {fault:?}: after the reply only Kill is possible");
            }
            if let Some(other) = plan.faults.insert(fault.at, fault.clone()) {
                bail!("fault {fault:?}: write {} already has {other:?}", fault.at);
            }
        }
        Ok(plan)
    }

    /// What happens at write `number`.
    #[must_use]
    pub fn at(&self, number: u64) -> Option<&Fault> {
        self.faults.get(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(at: u64, when: When, then: Then) -> Fault {
        Fault { at, when, then }
    }

    #[test]
    fn impossible_plans_are_refused_with_the_fault_in_the_message() {
        let zero = Plan::new([fault(0, When::BeforeSend, Then::Repeat)]).unwrap_err().to_string();
        assert!(zero.contains("counted from 1"), "{zero}");
        let late = Plan::new([fault(1, When::AfterReply, Then::DropConnection)]).unwrap_err().to_string();
        assert!(late.contains("only Kill"), "{late}");
        let twice = [fault(3, When::BeforeSend, Then::Repeat), fault(3, When::AfterCommit, Then::Repeat)];
        let twice = Plan::new(twice).unwrap_err().to_string();
        assert!(twice.contains("write 3 already has"), "{twice}");
    }

    #[test]
    fn only_the_named_write_is_hit() {
        let plan = Plan::new([fault(2, When::BeforeSend, Then::DropConnection)]).unwrap();
        assert!(plan.at(1).is_none() && plan.at(2).is_some() && plan.at(3).is_none());
    }
}
