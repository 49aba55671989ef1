//! The rules of the architecture that a driver can break, one at a time. None of them is in production code.

/// A rule that is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Switch {
    /// The fence is not asked before a request: a process whose term is over goes on until it hears of it.
    AsksNoFence,
    /// The entries of a round are queued before its record is durable.
    SendsBeforeItRecords,
    /// A record that was refused or has no reply counts as durable.
    TakesEveryRecordAsDurable,
    /// Records name no resourceVersion.
    RecordsWithoutVersion,
    /// Writes to pods name no resourceVersion.
    WritesWithoutVersion,
    /// Writes to pods name neither UID nor resourceVersion, and the last check before sending looks at names alone.
    NamesInsteadOfUids,
    /// A write of unknown outcome counts as not made.
    UnknownIsNotMade,
    /// A bump counts as made and is not sent.
    BumpsNothing,
    /// A term begins with what this process remembers of its last one.
    RemembersItsLastTerm,
    /// A term does not raise the epoch before it acts.
    RaisesNoEpoch,
    /// A target whose request is on the wire is decided anew.
    NobodyIsBusy,
    /// A write of unknown outcome is made again at once, on a fresh view.
    RepeatsOnAFreshView,
    /// No finalizer is put on the job before its targets are changed.
    PutsNoFinalizer,
    /// A live read is answered from the cache.
    ReadsTheCache,
    /// The claims are forgotten between two rounds.
    ForgetsClaims,
    /// The result of an entry never comes back.
    LosesResults,
    /// The deletion of a job is not noticed.
    IgnoresDeletion,
    /// A term begins with the entries that this process had not sent in its last one.
    KeepsItsQueue,
    /// A round takes no entry back.
    TakesNothingBack,
    /// The due time that a round computes is dropped.
    ForgetsDueTimes,
}

impl Switch {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::AsksNoFence,
        Self::SendsBeforeItRecords,
        Self::TakesEveryRecordAsDurable,
        Self::RecordsWithoutVersion,
        Self::WritesWithoutVersion,
        Self::NamesInsteadOfUids,
        Self::UnknownIsNotMade,
        Self::BumpsNothing,
        Self::RemembersItsLastTerm,
        Self::RaisesNoEpoch,
        Self::NobodyIsBusy,
        Self::RepeatsOnAFreshView,
        Self::PutsNoFinalizer,
        Self::ReadsTheCache,
        Self::ForgetsClaims,
        Self::LosesResults,
        Self::IgnoresDeletion,
        Self::KeepsItsQueue,
        Self::TakesNothingBack,
        Self::ForgetsDueTimes,
    ];
}
