//! The misdeeds of the plugin, each with a word such as `trap`. The host must withstand all of them. Each misdeed must
//! do everything that its name says.

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use oarlock_sdk::log::info;
use oarlock_sdk::{Change, Failure, Freshness, Job, Mutation, ObjectRef, Proposal, Result, Target, get};

use crate::DO;

/// The label of a held pod.
const HELD: &str = "hostile.test/held";

/// A number of mutations above the host's limit.
const MUTATIONS: usize = 10_000;
/// A number of events above the host's limit.
const EVENTS: usize = 10_000;
/// A number of lines that floods a log.
const LINES: usize = 100_000;
/// A size of the output above the host's limit, in bytes.
const OUTPUT: usize = 16 << 20;
/// A size of an extra above the host's limit, in bytes.
const EXTRA: usize = 10 << 20;

/// A misdeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Panics.
    Trap,
    /// Never returns.
    Loop,
    /// Allocates memory until none is left.
    Memory,
    /// Calls itself until the stack is full.
    Recursion,
    /// Answers with 16 MB.
    Output,
    /// Proposes 10,000 mutations.
    Mutations,
    /// Records 10,000 events.
    Events,
    /// Writes 100,000 lines.
    Log,
    /// Prints 100,000 lines.
    PrintFlood,
    /// Prints a few lines.
    Print,
    /// Calls the host endlessly.
    Calls,
    /// Stores 10 MB.
    Extra,
    /// Stores extras that belong to the host.
    HostExtra,
    /// Reads a field that its manifest does not declare.
    Field,
    /// Reads a kind that its manifest does not declare.
    Kind,
    /// Reads a relation that it did not declare.
    Relation,
    /// Proposes a mutation that its manifest does not ask for.
    Ungranted,
    /// Changes an object that is not its target.
    Foreign,
    /// Changes an object with its target's name in another namespace.
    Namespace,
    /// Changes an object with its target's name and another UID.
    Uid,
    /// Evicts a pod whose name is a path.
    Path,
    /// Writes control characters wherever text goes.
    Control,
    /// Names an object in bytes that are not UTF-8.
    Utf8,
    /// Proposes a mutation of the open variant that no host knows.
    Other,
    /// Sends invalid JSON.
    Json,
    /// Answers at random.
    Chance,
    /// Reads the clock.
    Clock,
    /// Sets a label to another value at each visit.
    Mind,
    /// Marks its pod once, and relies on the host to remove the mark.
    Hold,
    /// Fails, and must not be retried.
    Fail,
    /// Fails endlessly, and asks for an immediate retry.
    Retry,
    /// Claims success; only in `progress`.
    Lie,
    /// Asks endlessly for an immediate visit; only in `progress`.
    Hurry,
    /// Asks endlessly for a visit in an hour; only in `progress`.
    Dawdle,
    /// Gives up with a garbled reason and a message of 1 MB; only in `progress`.
    Give,
}

/// Each misdeed and its word.
const WORDS: [(&str, Deed); 35] = [
    ("trap", Deed::Trap),
    ("loop", Deed::Loop),
    ("memory-bomb", Deed::Memory),
    ("deep-recursion", Deed::Recursion),
    ("huge-output", Deed::Output),
    ("many-mutations", Deed::Mutations),
    ("many-events", Deed::Events),
    ("log-flood", Deed::Log),
    ("print-flood", Deed::PrintFlood),
    ("print", Deed::Print),
    ("call-flood", Deed::Calls),
    ("huge-extra", Deed::Extra),
    ("host-extra", Deed::HostExtra),
    ("undeclared-field", Deed::Field),
    ("undeclared-kind", Deed::Kind),
    ("undeclared-relation", Deed::Relation),
    ("ungranted-mutation", Deed::Ungranted),
    ("foreign-object", Deed::Foreign),
    ("foreign-namespace", Deed::Namespace),
    ("foreign-uid", Deed::Uid),
    ("path-trick-name", Deed::Path),
    ("control-characters", Deed::Control),
    ("invalid-utf8", Deed::Utf8),
    ("unknown-mutation", Deed::Other),
    ("garbled-json", Deed::Json),
    ("nondeterministic", Deed::Chance),
    ("clock", Deed::Clock),
    ("another-label", Deed::Mind),
    ("hold", Deed::Hold),
    ("fail", Deed::Fail),
    ("retry", Deed::Retry),
    ("lie", Deed::Lie),
    ("hurry", Deed::Hurry),
    ("dawdle", Deed::Dawdle),
    ("garbled-end", Deed::Give),
];

impl Deed {
    /// Returns the misdeed of this word.
    pub(crate) fn of(word: &str) -> Result<Self> {
        let found = WORDS.into_iter().find(|(known, _)| *known == word).map(|(_, deed)| deed);
        found.ok_or_else(|| {
            Failure::permanent("UnknownDeed", format!("There is no misdeed {word}; see the list in deed.rs."))
        })
    }

    /// Returns the misdeed that is due in this function, if there is one.
    pub(crate) fn due(function: &str, job: &Job, target: &Target) -> Result<Option<Self>> {
        let label = target.object().and_then(|pod| pod.label(DO));
        let Some(asked) = label.map_or_else(|| job.parameter("/do"), |label| Ok(Some(label)))? else { return Ok(None) };
        let is_within = |limit: &str, number: u32| -> Result<bool> {
            let most: u32 = job.parameter(limit)?.unwrap_or(0);
            Ok(most == 0 || number <= most)
        };
        let is_due = is_within("/tries", target.call_try())? && is_within("/attempts", target.attempt())?;
        for one in asked.split(',').filter(|one| *one != "succeed") {
            match one.split_once("-in-") {
                Some((word, place)) if place == function && is_due => return Self::of(word).map(Some),
                Some(_) => {}
                None => {
                    let advice = format!("{one} does not say where: write {one}-in-operate.");
                    return Err(Failure::permanent("UnknownDeed", advice));
                }
            }
        }
        Ok(None)
    }

    /// Commits the misdeed. Returns the proposal, if the misdeed returns at all.
    pub(crate) fn commit(self, job: &Job, target: &Target) -> Result<Proposal> {
        let nothing = Proposal::new();
        let pod = ObjectRef::new("v1", "Pod", Some(job.namespace()), &target.name());
        let object: String = job.parameter("/object")?.unwrap_or_else(|| "p4/status".to_owned());
        Ok(match self {
            Self::Trap => trap(),
            Self::Loop => spin(),
            Self::Memory => hoard(),
            Self::Recursion => nothing.event("Deep", deeper(0).to_string()),
            Self::Output => nothing.event("Huge", "x".repeat(OUTPUT)),
            Self::Mutations => (0..MUTATIONS).fold(nothing, |sum, n| sum.change(label(&pod, n))),
            Self::Events => (0..EVENTS).fold(nothing, |sum, n| sum.event(&format!("Event{n}"), "One of many.")),
            Self::Log => flood(nothing),
            Self::PrintFlood => print_all(nothing),
            Self::Print => {
                println!("said aloud on {}\nand \u{1b}[2Jonce more", target.name());
                eprintln!("said in anger");
                nothing
            }
            Self::Calls => call_for_ever(target),
            Self::Extra => nothing.extra("Huge", "x".repeat(EXTRA)),
            Self::HostExtra => {
                ["Released", "Owner", "EvictedAt"].iter().fold(nothing, |sum, key| sum.extra(key, "true"))
            }
            Self::Field => nothing.event("Field", format!("{:?}", field(target)?)),
            Self::Kind => nothing.event("Kind", kind(job)?),
            Self::Relation => {
                nothing.event("Relation", target.related("never-declared", Freshness::Watched)?.len().to_string())
            }
            Self::Ungranted => nothing.delete(pod),
            Self::Foreign => nothing.change(label(&ObjectRef { name: object, ..pod }, 0)),
            Self::Namespace => {
                nothing.change(label(&ObjectRef { namespace: Some("kube-system".to_owned()), ..pod }, 0))
            }
            Self::Uid => nothing.change(label(&ObjectRef { uid: Some("not-the-one".to_owned()), ..pod }, 0)),
            Self::Path => nothing.evict(ObjectRef { name: object, ..pod }, None),
            Self::Control => control(nothing, &pod),
            Self::Utf8 => nothing.evict(ObjectRef { name: garbled(), ..pod }, None),
            Self::Other => nothing.mutation(Mutation::Other(("stop-the-world".to_owned(), "{}".to_owned()))),
            Self::Json => nothing.create("{\"kind\":").patch(pod, "[1, 2"),
            Self::Chance => chance(&pod),
            Self::Clock => nothing.extra("Clock", clock()),
            Self::Mind => nothing.change(Change::of(pod).set_label("hostile.test/mind", job.now_ms().to_string())),
            Self::Hold => match target.object() {
                Some(pod) if !pod.has_label(HELD) => nothing.change(Change::of(&pod).set_label(HELD, "true")),
                _ => nothing,
            },
            Self::Fail => return Err(Failure::permanent("Hostile", "It was told to fail.")),
            Self::Retry => return Err(Failure::retryable("Hostile", "It was told to try for ever.")),
            Self::Lie | Self::Hurry | Self::Dawdle | Self::Give => return Err(misplaced()),
        })
    }
}

fn misplaced() -> Failure {
    Failure::permanent("UnknownDeed", "This misdeed belongs into `progress`.")
}

#[allow(clippy::panic, reason = "a trap is what is asked for")]
pub(crate) fn trap() -> ! {
    panic!("hostile: it was told to trap")
}

pub(crate) fn spin() -> ! {
    loop {
        black_box(());
    }
}

/// Allocates a megabyte at a time and touches all of it, because untouched memory costs nothing.
pub(crate) fn hoard() -> ! {
    let mut hoard = Vec::new();
    loop {
        hoard.push(black_box(vec![1_u8; 1 << 20]));
    }
}

#[allow(unconditional_recursion, reason = "a full stack is what is asked for")]
pub(crate) fn deeper(depth: u64) -> u64 {
    black_box(&depth);
    deeper(depth + 1) + depth
}

fn flood(proposal: Proposal) -> Proposal {
    (0..LINES).for_each(|_| info(&"flood ".repeat(64), &[("of", "words")]));
    proposal
}

fn print_all(proposal: Proposal) -> Proposal {
    (0..LINES).for_each(|n| println!("line {n}"));
    proposal
}

fn call_for_ever(target: &Target) -> ! {
    loop {
        black_box(target.index());
    }
}

fn label(pod: &ObjectRef, n: usize) -> Change {
    Change::of(pod.clone()).set_label(&format!("hostile.test/n{n}"), "true")
}

fn field(target: &Target) -> Result<Option<String>> {
    Ok(target.object().map(|pod| pod.field("/spec/nodeName")).transpose()?.flatten())
}

fn kind(job: &Job) -> Result<String> {
    let secret = ObjectRef::new("v1", "Secret", Some(job.namespace()), "token");
    Ok(get(&secret, Freshness::Live)?.map_or_else(|| "none".to_owned(), |secret| secret.name()))
}

fn control(proposal: Proposal, pod: &ObjectRef) -> Proposal {
    let text = "a\u{0}\u{7}\u{1b}[2J\r\n\u{202e}\u{feff}b";
    info(text, &[(text, text)]);
    proposal
        .extra(text, text)
        .warning(text, text)
        .change(Change::of(pod.clone()).set_label(&format!("hostile.test/{text}"), text))
        .evict(ObjectRef { name: text.to_owned(), ..pod.clone() }, None)
}

#[allow(unsafe_code, reason = "no safe code can make such a string, and other languages do")]
fn garbled() -> String {
    // SAFETY: nothing here looks at the characters. The string only crosses the border of the component, where the host
    // must check it.
    unsafe { String::from_utf8_unchecked(vec![0x70, 0xff, 0xfe, 0xc0]) }
}

/// Draws the label by lot. On a host with seeded randomness, a repeated call draws the same label.
fn chance(pod: &ObjectRef) -> Proposal {
    let lot = RandomState::new().hash_one(0);
    Proposal::new().extra("Lot", lot.to_string()).change(label(pod, usize::try_from(lot % 1000).unwrap_or(0)))
}

/// Returns the milliseconds since 1970, and the nanoseconds that some work took.
#[allow(clippy::disallowed_methods, reason = "it is what a plugin does that was told not to")]
fn clock() -> String {
    let begun = Instant::now();
    black_box((0..10_000).map(black_box).sum::<u32>());
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{} {}", since.as_millis(), begun.elapsed().as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_names_another_misdeed() {
        for (at, (word, deed)) in WORDS.iter().enumerate() {
            assert_eq!(Deed::of(word).unwrap(), *deed);
            assert!(WORDS[at + 1..].iter().all(|(other, same)| other != word && same != deed), "{word}");
        }
        assert_eq!(Deed::of("nonsense").unwrap_err().reason(), "UnknownDeed");
    }
}
