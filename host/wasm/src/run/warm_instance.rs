//! One instance of a plugin, which serves several calls.
//!
//! A trap or an exceeded limit is an error and ends the instance.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::plugin::proposal::{CallFailure, Proposal, Registration, Report};
use oarlock_core::plugin::visit::{Visit, VisitUse};
use tokio::sync::OwnedSemaphorePermit;
use wasmtime::component::Resource;
use wasmtime::{Store, UpdateDeadline};

use crate::run::bindings::{Action, ActionPre, action};
use crate::run::call_error::CallError;
use crate::run::convert;
use crate::run::engine::Engine;
use crate::run::guest::{Guest, PluginSettings};
use crate::run::handles::{JobHandle, TargetHandle};
use crate::run::limits::LimitExceeded;
use crate::run::ticker::Ticking;

/// The number of calls that one instance serves. The limit exists because the handles of past calls stay in the instance's table.
const CALLS_PER_INSTANCE: u32 = 64;

/// The shared data of all calls of one plugin.
pub(crate) struct CallContext {
    pub engine: Arc<Engine>,
    pub pre: ActionPre<Guest>,
    pub settings: Arc<PluginSettings>,
    /// The longest time of a call on the wall clock.
    pub wall_timeout: Option<Duration>,
}

/// One function of a plugin, with the visit for which it is called.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    Setup,
    Operate(&'a Arc<Visit>),
    Progress(&'a Arc<Visit>),
    Release(&'a Arc<Visit>),
}

/// The output of a function.
pub(crate) enum Output {
    Registration(Registration),
    Proposal(Proposal),
    Report(Report),
}

/// An output or a failure, or the reason why the answer is invalid.
type Answered = Result<Result<Output, CallFailure>, String>;
/// An answer with the number of bytes that came from the plugin.
type Measured = Result<(Result<Output, CallFailure>, usize), String>;

/// An instance that serves calls one after the other.
pub(crate) struct WarmInstance {
    store: Store<Guest>,
    action: Action,
    calls: u32,
    wall_timeout: Option<Duration>,
    _permits: [OwnedSemaphorePermit; 2],
    _ticking: Ticking,
}

/// Calls `setup` in a fresh instance.
pub(crate) async fn setup(context: &CallContext) -> Result<Result<Registration, CallFailure>, CallError> {
    let mut instance = WarmInstance::start(context).await?;
    Ok(match instance.call(Request::Setup).await? {
        Ok(Output::Registration(registration)) => Ok(registration),
        Ok(_) => return Err(Request::Setup.answered_by_another()),
        Err(failure) => Err(failure),
    })
}

impl WarmInstance {
    /// Waits until the host may run another instance, and starts it.
    pub(crate) async fn start(context: &CallContext) -> Result<Self, CallError> {
        let permit = context.engine.permits.clone().acquire_owned().await.map_err(|_| CallError::Busy)?;
        let memory = context.engine.memory.clone().acquire_many_owned(context.settings.limits.memory_mib).await;
        let permits = [permit, memory.map_err(|_| CallError::Busy)?];
        let ticking = context.engine.ticker.keep();
        let mut store = Store::new(&context.engine.wasm, Guest::new(context.settings.clone()));
        store.limiter(|guest| &mut guest.meter);
        store.set_hostcall_fuel(store.data().meter.copied_bytes());
        store.epoch_deadline_callback(|mut context| match context.data_mut().meter.tick() {
            Ok(()) => Ok(UpdateDeadline::Yield(1)),
            Err(exceeded) => Err(wasmtime::Error::new(exceeded)),
        });
        store.data_mut().begin_call(None);
        store.set_epoch_deadline(1);
        let wall_timeout = context.wall_timeout;
        match within(wall_timeout, context.pre.instantiate_async(&mut store)).await {
            Ok(action) => Ok(Self { store, action, calls: 0, wall_timeout, _permits: permits, _ticking: ticking }),
            Err(error) => Err(CallError::of_engine(store.data(), "the start of an instance", &error)),
        }
    }

    /// Returns true if a fresh instance must replace this instance.
    pub(crate) fn is_used_up(&self) -> bool {
        self.calls >= CALLS_PER_INSTANCE
    }

    /// Returns the number of calls that the instance has served.
    pub(crate) fn calls(&self) -> u32 {
        self.calls
    }

    /// Adds the cost of the last call to that of its visit.
    pub(crate) fn add_to(&self, used: &mut VisitUse) {
        let meter = &self.store.data().meter;
        used.host_calls = used.host_calls.saturating_add(meter.used_host_calls());
        used.answer_bytes = used.answer_bytes.saturating_add(meter.answer_bytes().into());
        used.memory_bytes = meter.memory() as u64;
    }

    /// Calls one function. After an error, the instance must not be called again.
    pub(crate) async fn call(&mut self, request: Request<'_>) -> Result<Result<Output, CallFailure>, CallError> {
        self.calls += 1;
        self.store.data_mut().begin_call(request.visit().cloned());
        self.store.set_epoch_deadline(1);
        let answered = within(self.wall_timeout, self.run(request)).await;
        // The error is built before the log takes the output of the call, because standard error says why the call trapped.
        let answered = match answered {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(why)) => Err(CallError::garbage(request.function(), &why)),
            Err(error) => Err(CallError::of_engine(self.store.data(), request.function(), &error)),
        };
        self.store.data().note_use();
        self.store.data_mut().log_what_was_printed();
        self.store.data_mut().warn_of_dropped_lines();
        answered
    }

    async fn run(&mut self, request: Request<'_>) -> wasmtime::Result<Answered> {
        let Self { store, action, .. } = self;
        let handler = action.oarlock_action_handler();
        let measured = match request {
            Request::Setup => registration_of(handler.call_setup(&mut *store).await?),
            Request::Operate(visit) => {
                let (job, target) = handles(store, visit)?;
                proposal_of(handler.call_operate(&mut *store, job, target).await?)
            }
            Request::Progress(visit) => {
                let (job, target) = handles(store, visit)?;
                report_of(handler.call_progress(&mut *store, job, target).await?)
            }
            Request::Release(visit) => {
                let (job, target) = handles(store, visit)?;
                proposal_of(handler.call_release(&mut *store, job, target).await?)
            }
        };
        Ok(match measured {
            Ok((answer, bytes)) => {
                store.data_mut().meter.output(bytes).map_err(wasmtime::Error::new)?;
                Ok(answer)
            }
            Err(why) => Err(why),
        })
    }
}

fn handles(
    store: &mut Store<Guest>,
    visit: &Arc<Visit>,
) -> wasmtime::Result<(Resource<JobHandle>, Resource<TargetHandle>)> {
    let table = &mut store.data_mut().table;
    Ok((table.push(JobHandle(visit.clone()))?, table.push(TargetHandle(visit.clone()))?))
}

fn registration_of(from: Result<action::Registration, action::Failure>) -> Measured {
    measured(from, |from| convert::registration(from).map(|(to, bytes)| (Output::Registration(to), bytes)))
}

fn proposal_of(from: Result<action::Proposal, action::Failure>) -> Measured {
    measured(from, |from| convert::proposal(from).map(|(to, bytes)| (Output::Proposal(to), bytes)))
}

fn report_of(from: Result<action::Report, action::Failure>) -> Measured {
    measured(from, |from| convert::report(from).map(|(to, bytes)| (Output::Report(to), bytes)))
}

fn measured<T>(
    from: Result<T, action::Failure>,
    convert: impl FnOnce(T) -> Result<(Output, usize), String>,
) -> Measured {
    match from {
        Ok(output) => convert(output).map(|(output, bytes)| (Ok(output), bytes)),
        Err(failure) => {
            let (failure, bytes) = convert::failure(failure);
            Ok((Err(failure), bytes))
        }
    }
}

/// Waits for a call. The engine's clock stops a plugin that computes, and this timeout would stop a plugin that waits.
async fn within<T>(timeout: Option<Duration>, call: impl Future<Output = wasmtime::Result<T>>) -> wasmtime::Result<T> {
    let Some(timeout) = timeout else { return call.await };
    match tokio::time::timeout(timeout, call).await {
        Ok(result) => result,
        Err(_) => Err(wasmtime::Error::new(LimitExceeded(format!("it did not return within {timeout:?}")))),
    }
}

impl<'a> Request<'a> {
    /// Returns the name of the function.
    pub(crate) fn function(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Operate(_) => "operate",
            Self::Progress(_) => "progress",
            Self::Release(_) => "release",
        }
    }

    fn visit(self) -> Option<&'a Arc<Visit>> {
        match self {
            Self::Setup => None,
            Self::Operate(visit) | Self::Progress(visit) | Self::Release(visit) => Some(visit),
        }
    }

    /// Returns the error for an output of a type that this function does not return.
    pub(crate) fn answered_by_another(self) -> CallError {
        CallError::garbage(self.function(), "another function's answer")
    }
}
