//! Calls the functions of a plugin.
//!
//! Takes visits; yields answers. A trap or a limit is an answer too, and ends the instance: the next call gets a fresh
//! one. May not judge answers, nor count how often a plugin trapped.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::plugin::proposal::{CallFailure, Proposal, Registration, Report};
use oarlock_core::plugin::visit::{Answer, Call, Trap, Visit};
use tokio::sync::OwnedSemaphorePermit;
use wasmtime::component::Resource;
use wasmtime::{PoolConcurrencyLimitError, Store, UpdateDeadline};
use wasmtime_wasi::I32Exit;

use crate::plugin::{Compiled, Plugin};
use crate::rejection::causes;
use crate::run::bindings::{Action, action};
use crate::run::convert;
use crate::run::engine::Engine;
use crate::run::guest::{Guest, Terms};
use crate::run::host_functions::{JobHandle, TargetHandle};
use crate::run::limits::LimitExceeded;
use crate::run::ticker::Ticking;

/// How many calls an instance serves: the handles of past calls stay in its table.
const CALLS_PER_INSTANCE: u32 = 64;
const TRAPPED: &str = "PluginTrapped";
const LIMIT: &str = "PluginLimitExceeded";

/// Visits of one job to one plugin, one after the other, that may share an instance.
pub struct Wave {
    plugin: Arc<Plugin>,
    live: Option<Live>,
}

/// What a call needs: an engine, code, terms, and how long it may take on the wall's clock.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub engine: &'a Engine,
    pub compiled: &'a Compiled,
    pub terms: &'a Arc<Terms>,
    pub wall_timeout: Option<Duration>,
}

/// Why a call gave no answer.
#[derive(Debug)]
pub(crate) enum Broken {
    /// It trapped or exceeded a limit.
    Trap(Trap),
    /// There is no place for an instance now.
    Busy,
}

#[derive(Clone, Copy)]
enum Function {
    Setup,
    Operate,
    Progress,
    Release,
}

enum Said {
    Registration(Registration),
    Proposal(Proposal),
    Report(Report),
}

impl Wave {
    pub(crate) fn new(plugin: Arc<Plugin>) -> Self {
        Self { plugin, live: None }
    }

    /// Calls the plugin for one target.
    pub async fn call(&mut self, visit: Visit) -> Answer {
        let visit = Arc::new(visit);
        match self.visit(&visit).await {
            Ok(answer) => answer,
            Err(Broken::Trap(trap)) => Answer::Trapped(trap),
            Err(Broken::Busy) => Answer::Failed(CallFailure {
                retryable: true,
                reason: "PluginsBusy".to_owned(),
                message: "the host has no room for another instance now".to_owned(),
                retry_after_ms: None,
            }),
        }
    }

    async fn visit(&mut self, visit: &Arc<Visit>) -> Result<Answer, Broken> {
        match visit.call {
            Call::OperateThenProgress => match self.proposal(Function::Operate, visit).await? {
                Err(failure) => Ok(Answer::Failed(failure)),
                Ok(proposal) if !proposal.mutations.is_empty() => Ok(Answer::Proposed(proposal)),
                Ok(operate) => self.progress(operate, visit).await,
            },
            Call::Progress => self.progress(Proposal::default(), visit).await,
            Call::Release => Ok(match self.proposal(Function::Release, visit).await? {
                Ok(proposal) => Answer::Proposed(proposal),
                Err(failure) => Answer::Failed(failure),
            }),
        }
    }

    async fn progress(&mut self, operate: Proposal, visit: &Arc<Visit>) -> Result<Answer, Broken> {
        Ok(match self.ask(Function::Progress, visit).await? {
            Ok(Said::Report(report)) => Answer::Reported { operate, report },
            Ok(_) => return Err(Broken::Trap(garbage(Function::Progress, "another function's answer"))),
            Err(failure) => Answer::Failed(failure),
        })
    }

    async fn proposal(
        &mut self,
        function: Function,
        visit: &Arc<Visit>,
    ) -> Result<Result<Proposal, CallFailure>, Broken> {
        Ok(match self.ask(function, visit).await? {
            Ok(Said::Proposal(proposal)) => Ok(proposal),
            Ok(_) => return Err(Broken::Trap(garbage(function, "another function's answer"))),
            Err(failure) => Err(failure),
        })
    }

    async fn ask(&mut self, function: Function, visit: &Arc<Visit>) -> Result<Result<Said, CallFailure>, Broken> {
        let plugin = self.plugin.clone();
        let setting = plugin.setting();
        let mut live = match self.live.take() {
            Some(live) if live.calls < CALLS_PER_INSTANCE => live,
            // The old one goes first, so that it does not hold a place that this one waits for.
            old => {
                drop(old);
                Live::start(setting).await?
            }
        };
        let answer = live.ask(setting, function, Some(visit)).await?;
        self.live = Some(live);
        Ok(answer)
    }
}

/// Calls `setup` in a fresh instance.
pub(crate) async fn setup(setting: Setting<'_>) -> Result<Result<Registration, CallFailure>, Broken> {
    let mut live = Live::start(setting).await?;
    Ok(match live.ask(setting, Function::Setup, None).await? {
        Ok(Said::Registration(registration)) => Ok(registration),
        Ok(_) => return Err(Broken::Trap(garbage(Function::Setup, "another function's answer"))),
        Err(failure) => Err(failure),
    })
}

/// An instance.
struct Live {
    store: Store<Guest>,
    action: Action,
    calls: u32,
    _place: OwnedSemaphorePermit,
    _ticking: Ticking,
}

impl Live {
    async fn start(setting: Setting<'_>) -> Result<Self, Broken> {
        let place = setting.engine.places.clone().acquire_owned().await.map_err(|_| Broken::Busy)?;
        let ticking = setting.engine.ticker.keep();
        let mut store = Store::new(&setting.engine.wasm, Guest::new(setting.terms.clone()));
        store.limiter(|guest| &mut guest.meter);
        store.set_hostcall_fuel(store.data().meter.copied_bytes());
        store.epoch_deadline_callback(|mut context| match context.data_mut().meter.tick() {
            Ok(()) => Ok(UpdateDeadline::Yield(1)),
            Err(exceeded) => Err(wasmtime::Error::new(exceeded)),
        });
        store.data_mut().begin(None);
        store.set_epoch_deadline(1);
        let started = within(setting.wall_timeout, setting.compiled.pre.instantiate_async(&mut store)).await;
        match started {
            Ok(action) => Ok(Self { store, action, calls: 0, _place: place, _ticking: ticking }),
            Err(error) => Err(broken(store.data(), "the start of an instance", &error)),
        }
    }

    async fn ask(
        &mut self,
        setting: Setting<'_>,
        function: Function,
        visit: Option<&Arc<Visit>>,
    ) -> Result<Result<Said, CallFailure>, Broken> {
        self.calls += 1;
        self.store.data_mut().begin(visit.cloned());
        self.store.set_epoch_deadline(1);
        let said = within(setting.wall_timeout, self.run(function, visit)).await;
        self.store.data_mut().confess_dropped_lines();
        match said {
            Ok(Ok(said)) => Ok(said),
            Ok(Err(why)) => Err(Broken::Trap(garbage(function, &why))),
            Err(error) => Err(broken(self.store.data(), function.name(), &error)),
        }
    }

    /// The call itself: an error for a trap, then a sentence for garbage, then what was answered.
    async fn run(&mut self, function: Function, visit: Option<&Arc<Visit>>) -> wasmtime::Result<Answered> {
        let Self { store, action, .. } = self;
        let handler = action.oarlock_action_handler();
        let sized = if let Some(visit) = visit {
            let table = &mut store.data_mut().table;
            let job: Resource<JobHandle> = table.push(JobHandle(visit.clone()))?;
            let target: Resource<TargetHandle> = table.push(TargetHandle(visit.clone()))?;
            match function {
                Function::Operate => proposed(handler.call_operate(&mut *store, job, target).await?),
                Function::Release => proposed(handler.call_release(&mut *store, job, target).await?),
                Function::Progress => {
                    let report = |report| convert::report(report).map(|(report, size)| (Said::Report(report), size));
                    answer(handler.call_progress(&mut *store, job, target).await?, report)
                }
                Function::Setup => Err("`setup` is not called for a target".to_owned()),
            }
        } else {
            answer(handler.call_setup(&mut *store).await?, |registration| {
                convert::registration(registration).map(|(asked, size)| (Said::Registration(asked), size))
            })
        };
        Ok(match sized {
            Ok((said, bytes)) => {
                store.data().meter.output(bytes).map_err(wasmtime::Error::new)?;
                Ok(said)
            }
            Err(why) => Err(why),
        })
    }
}

type Answered = Result<Result<Said, CallFailure>, String>;
/// What was answered, and how many bytes of it came from the plugin.
type Weighed = Result<(Result<Said, CallFailure>, usize), String>;

fn answer<T>(from: Result<T, action::Failure>, convert: impl FnOnce(T) -> Result<(Said, usize), String>) -> Weighed {
    match from {
        Ok(said) => convert(said).map(|(said, bytes)| (Ok(said), bytes)),
        Err(failure) => {
            let (failure, bytes) = convert::failure(failure);
            Ok((Err(failure), bytes))
        }
    }
}

fn proposed(from: Result<action::Proposal, action::Failure>) -> Weighed {
    answer(from, |proposal| convert::proposal(proposal).map(|(proposal, size)| (Said::Proposal(proposal), size)))
}

/// Waits for a call. The engine's clock stops what computes; this stops what waits, should there ever be such a thing.
async fn within<T>(timeout: Option<Duration>, call: impl Future<Output = wasmtime::Result<T>>) -> wasmtime::Result<T> {
    let Some(timeout) = timeout else { return call.await };
    match tokio::time::timeout(timeout, call).await {
        Ok(result) => result,
        Err(_) => Err(wasmtime::Error::new(LimitExceeded(format!("it did not return within {timeout:?}")))),
    }
}

fn garbage(function: Function, why: &str) -> Trap {
    Trap { reason: TRAPPED, message: format!("{} returned garbage: {why}", function.name()) }
}

fn broken(guest: &Guest, what: &str, error: &wasmtime::Error) -> Broken {
    if error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
        return Broken::Busy;
    }
    let limit = |why: &str| Trap { reason: LIMIT, message: format!("{what} exceeded a limit: {why}") };
    if let Some(exceeded) = error.downcast_ref::<LimitExceeded>() {
        return Broken::Trap(limit(&exceeded.0));
    }
    if let Some(why) = &guest.meter.refused {
        return Broken::Trap(limit(why));
    }
    let root = error.root_cause().to_string();
    if error.downcast_ref::<wasmtime::Trap>() == Some(&wasmtime::Trap::StackOverflow) {
        return Broken::Trap(limit("its stack is full"));
    }
    // The engine's type for this is private.
    if root.contains("fuel allocated for hostcalls") {
        return Broken::Trap(limit("it hands over too many bytes at once"));
    }
    let words = guest.last_words();
    let cause = match error.downcast_ref::<I32Exit>() {
        Some(exit) => format!("exit with status {}", exit.0),
        None if words.is_empty() => causes(error.root_cause()),
        None => words,
    };
    Broken::Trap(Trap { reason: TRAPPED, message: format!("{what} trapped: {cause}") })
}

impl Function {
    fn name(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Operate => "operate",
            Self::Progress => "progress",
            Self::Release => "release",
        }
    }
}
