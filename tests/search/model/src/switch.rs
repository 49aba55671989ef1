//! The rules of the architecture that a driver can break, one at a time. None of these switches is in production code.

/// A rule that is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Switch {
    /// The driver does not ask the fence before a request. A process whose term is over continues until it hears of the
    /// end.
    AsksNoFence,
    /// The driver queues the write batches of a round before its record is durable.
    SendsBeforeItRecords,
    /// A record counts as durable even if the API server refused it or the reply was lost.
    TakesEveryRecordAsDurable,
    /// Records name no resourceVersion.
    RecordsWithoutVersion,
    /// Writes to pods name no resourceVersion.
    WritesWithoutVersion,
    /// Writes to pods name neither UID nor resourceVersion, and the final check before sending compares only names.
    NamesInsteadOfUids,
    /// A write of unknown outcome counts as not made.
    UnknownIsNotMade,
    /// A write that only moves a resourceVersion counts as made, but is not sent.
    BumpsNothing,
    /// A term begins with the memory of the last term of this process.
    RemembersItsLastTerm,
    /// A term does not raise the epoch before it acts.
    RaisesNoEpoch,
    /// The driver decides again on a target whose request is in flight.
    NobodyIsBusy,
    /// The driver repeats a write of unknown outcome at once, based on a fresh view.
    RepeatsOnAFreshView,
    /// The driver changes targets of a job that has no finalizer.
    PutsNoFinalizer,
    /// The driver answers a live read from the cache.
    ReadsTheCache,
    /// The driver forgets the claims between two rounds.
    ForgetsClaims,
    /// The driver loses the result of each write batch.
    LosesResults,
    /// The driver does not notice the deletion of a job.
    IgnoresDeletion,
    /// A term begins with the unsent write batches of the last term of this process.
    KeepsItsQueue,
    /// A round withdraws no waiting write batch.
    TakesNothingBack,
    /// The driver drops the due time that a round computes.
    ForgetsDueTimes,
}

impl Switch {
    /// All rules.
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
