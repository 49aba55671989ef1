//! Plans of faults: what goes wrong, and at which write.
//!
//! A plan says for each write whether something happens, when, and what. A plan is data: it neither sends nor waits. Writes are
//! numbered from one, in the order of arrival.

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
    /// The server has answered, and the client does not know yet.
    AfterCommit,
    /// The client has read the reply.
    AfterReply,
}

impl When {
    /// All moments, for tests that go through each.
    pub const ALL: [Self; 3] = [Self::BeforeSend, Self::AfterCommit, Self::AfterReply];
}

/// A function that ends the client. The task that carries the write calls it once.
pub type Killer = Arc<dyn Fn() + Send + Sync>;

/// The effect of a fault on a write.
#[derive(Clone)]
pub enum Then {
    /// The client is killed. It gets no reply, unless it has read the reply already.
    Kill(Killer),
    /// The write, or its reply, is delayed.
    Delay(Duration),
    /// The client gets this status. The moment decides whether the server was asked.
    Refuse(StatusCode),
    /// The server gets the write twice. The client gets the second answer if the moment is before sending, else the first.
    Repeat,
    /// The client loses its connection without a reply.
    DropConnection,
    /// The client gets no answer. The server gets the request after this time, even if the client gives up.
    Late(Duration),
    /// The request, or its reply, waits until the latch is released.
    Hold(Latch),
    /// The client gets this status and body.
    Answer(u16, Value),
    /// The client gets 200 and a body that comes in these pieces and then ends.
    Pieces(Vec<&'static str>),
    /// The client gets no reply.
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

/// One fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The number of the write, from one.
    pub at: u64,
    /// The moment within the write.
    pub when: When,
    /// The effect on the write.
    pub then: Then,
}

/// A plan with at most one fault per write.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    faults: BTreeMap<u64, Fault>,
}

impl Plan {
    /// Returns a plan without faults, for the run that counts the writes.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns a plan of the given faults.
    ///
    /// # Errors
    ///
    /// If a fault is for write 0, if two faults are for one write, or if a fault after the reply is not a kill.
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

    /// Returns the fault for write `number`.
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
