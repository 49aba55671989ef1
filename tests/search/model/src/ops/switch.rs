//! The rules of OpsJobs that a driver can break, one at a time. None of these switches is in production code.

/// A rule of OpsJobs that is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpsSwitch {
    /// The driver does not ask the fence before a request. A process whose term is over continues.
    AsksNoFence,
    /// A term begins with no claims.
    RestoresNoClaims,
    /// A term restores the claims from its cache, without a live list.
    RestoresFromTheCache,
    /// A term gives a node that two OpsJobs claim to the older one, although the other one may be at work.
    RestoresByAge,
    /// A term restores no claim of an OpsJob that has ended.
    RestoresNoEndedJob,
    /// An OpsJob whose stored status has resolved its targets does not claim them again.
    ClaimsOnce,
    /// The driver writes statuses without the resourceVersion.
    WritesStatusWithoutVersion,
    /// The driver writes finalizers and targets without the resourceVersion.
    PatchesWithoutVersion,
    /// The driver unpauses an OperationJob without a live read of its OpsJob.
    UnpausesWithoutLiveRead,
    /// The driver unpauses an OperationJob before the status of its OpsJob names it.
    UnpausesBeforeItRecords,
    /// The driver pauses and unpauses an OperationJob of its name, whatever its UID is.
    PausesByName,
    /// The driver creates OperationJobs that are not paused.
    CreatesUnpaused,
    /// The driver does not read a recorded OperationJob that its cache lacks.
    ReadsNoRecordedChild,
    /// The driver does not read a recorded OperationJob that its cache lacks once the OpsJob has ended.
    TrustsTheCacheAtTheEnd,
    /// The driver works on with an OperationJob whose UID is not the recorded one.
    FollowsAnyChild,
    /// The driver deletes an OperationJob before the outcomes of its targets are stored.
    DeletesBeforeItStoresOutcomes,
    /// The driver removes the finalizer of an OpsJob that has ended while its OperationJob exists.
    DropsFinalizerEarly,
    /// The driver does not release the targets of an OpsJob that is gone.
    KeepsClaimsOfTheGone,
}

impl OpsSwitch {
    /// All rules.
    pub const ALL: [Self; 18] = [
        Self::AsksNoFence,
        Self::RestoresNoClaims,
        Self::RestoresFromTheCache,
        Self::RestoresByAge,
        Self::RestoresNoEndedJob,
        Self::ClaimsOnce,
        Self::WritesStatusWithoutVersion,
        Self::PatchesWithoutVersion,
        Self::UnpausesWithoutLiveRead,
        Self::UnpausesBeforeItRecords,
        Self::PausesByName,
        Self::CreatesUnpaused,
        Self::ReadsNoRecordedChild,
        Self::TrustsTheCacheAtTheEnd,
        Self::FollowsAnyChild,
        Self::DeletesBeforeItStoresOutcomes,
        Self::DropsFinalizerEarly,
        Self::KeepsClaimsOfTheGone,
    ];
}
