//! Calls the functions of a plugin for the targets of one job.
//!
//! A session takes visits and returns answers. It does not judge answers.

use std::sync::Arc;

use oarlock_core::plugin::proposal::{CallFailure, Proposal};
use oarlock_core::plugin::visit::{Answer, Call, Visit, VisitUse};

use crate::run::call_error::CallError;
use crate::run::warm_instance::{CallContext, Output, Request, WarmInstance};

/// The visits of one job to one plugin in one round. The visits run one after the other and share an instance. A call that traps ends the
/// instance, and the next call gets a fresh instance.
pub struct Session {
    context: Arc<CallContext>,
    instance: Option<WarmInstance>,
    /// The cost of the last visit, once an instance has begun it.
    used: Option<VisitUse>,
}

impl Session {
    pub(crate) fn new(context: Arc<CallContext>) -> Self {
        Self { context, instance: None, used: None }
    }

    /// Returns the cost of the last visit. It is zero if no instance could begin the visit.
    pub fn last_use(&self) -> VisitUse {
        self.used.unwrap_or_default()
    }

    /// Calls the plugin for one target.
    pub async fn call(&mut self, visit: Visit) -> Answer {
        let visit = Arc::new(visit);
        self.used = None;
        match self.visit(&visit).await {
            Ok(answer) => answer,
            Err(CallError::Trap(trap)) => Answer::Trapped(trap),
            Err(CallError::Busy) => Answer::Failed(CallFailure {
                retryable: true,
                reason: "PluginsBusy".to_owned(),
                message: "the host has no room for another instance now".to_owned(),
                retry_after_ms: None,
            }),
        }
    }

    async fn visit(&mut self, visit: &Arc<Visit>) -> Result<Answer, CallError> {
        match visit.call {
            Call::OperateThenProgress => match self.proposal(Request::Operate(visit)).await? {
                Err(failure) => Ok(Answer::Failed(failure)),
                Ok(proposal) if !proposal.mutations.is_empty() => Ok(Answer::Proposed(proposal)),
                Ok(operate) => self.progress(operate, visit).await,
            },
            Call::Progress => self.progress(Proposal::default(), visit).await,
            Call::Release => Ok(match self.proposal(Request::Release(visit)).await? {
                Ok(proposal) => Answer::Proposed(proposal),
                Err(failure) => Answer::Failed(failure),
            }),
        }
    }

    async fn progress(&mut self, operate: Proposal, visit: &Arc<Visit>) -> Result<Answer, CallError> {
        let request = Request::Progress(visit);
        Ok(match self.request(request).await? {
            Ok(Output::Report(report)) => Answer::Reported { operate, report },
            Ok(_) => return Err(request.answered_by_another()),
            Err(failure) => Answer::Failed(failure),
        })
    }

    async fn proposal(&mut self, request: Request<'_>) -> Result<Result<Proposal, CallFailure>, CallError> {
        Ok(match self.request(request).await? {
            Ok(Output::Proposal(proposal)) => Ok(proposal),
            Ok(_) => return Err(request.answered_by_another()),
            Err(failure) => Err(failure),
        })
    }

    async fn request(&mut self, request: Request<'_>) -> Result<Result<Output, CallFailure>, CallError> {
        let mut instance = match self.instance.take() {
            Some(instance) if !instance.is_used_up() => instance,
            // The old instance is dropped first, so that it does not hold a permit that the new instance waits for.
            old => {
                drop(old);
                WarmInstance::start(&self.context).await?
            }
        };
        let used = self.used.get_or_insert_with(|| VisitUse { position: instance.calls(), ..VisitUse::default() });
        let answer = instance.call(request).await;
        instance.add_to(used);
        let answer = answer?;
        self.instance = Some(instance);
        Ok(answer)
    }
}
