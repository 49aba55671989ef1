//! Takes what an action answered and yields it, if the host would accept it.
//! May not judge by itself: the checks are the host's.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use oarlock_contract::authorize::{Authority, authorize};
use oarlock_contract::causes::causes;
use oarlock_contract::grant::Grant;
use oarlock_contract::limits::{CAPS, PluginLimits};
use oarlock_contract::object_key::ObjectKey;
use oarlock_contract::proposal;

use super::scene::{Exceeded, Lacks, Scene};
use crate::{Failure, Plugin, Result, kit, wit};

mod convert {
    //! Converts the SDK's bindings as the host converts its own.

    oarlock_contract::conversions!(crate::wit::bindings::exports::oarlock::action::handler);
}

/// What a plugin declares and is bound by.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) manifest: kit::Manifest,
    pub(super) limits: PluginLimits,
}

impl Rules {
    /// Those of a plugin.
    pub(super) fn of<A: Plugin>() -> Result<Self> {
        let manifest = kit::manifest::<A>().map_err(|error| permanent("ManifestInvalid", causes(&error)))?;
        let limits = PluginLimits::of(&manifest.limits, &manifest.limits, &CAPS);
        Ok(Self { manifest, limits })
    }
}

/// Calls a function of the plugin; one that exceeds a limit is ended as the
/// host would end it.
pub(super) fn limited<T>(function: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic: Box<dyn Any + Send>| {
        match (panic.downcast_ref::<Exceeded>(), panic.downcast_ref::<Lacks>()) {
            (Some(Exceeded(why)), _) => Err(over(function, why)),
            (_, Some(Lacks(why))) => Err(permanent("KitLacks", format!("In this test, {why}."))),
            _ => resume_unwind(panic),
        }
    })
}

/// The registration, if the host would accept it.
pub(super) fn registration(scene: &Scene, registration: crate::Registration) -> Result<proposal::Registration> {
    let (registration, bytes) = convert::registration(registration.into()).map_err(|why| garbage("setup", &why))?;
    fits("setup", scene, bytes)?;
    registration.check(&scene.rules.manifest).map_err(|why| permanent("RegistrationRefused", why))?;
    Ok(registration)
}

/// Checks a proposal as the host does.
pub(super) fn proposal(function: &str, scene: &Scene, proposal: wit::Proposal) -> Result<()> {
    let (proposal, bytes) = convert::proposal(proposal).map_err(|why| garbage(function, &why))?;
    fits(function, scene, bytes)?;
    allowed(scene, &proposal)
}

/// Checks a report as the host does.
pub(super) fn report(scene: &Scene, report: wit::Report) -> Result<()> {
    let (report, bytes) = convert::report(report).map_err(|why| garbage("progress", &why))?;
    fits("progress", scene, bytes)?;
    allowed(scene, &report.proposal)
}

/// Checks a failure as the host does, and yields it.
pub(super) fn failure(function: &str, scene: &Scene, failure: Failure) -> Failure {
    let (_, bytes) = convert::failure(failure.clone().into());
    fits(function, scene, bytes).err().unwrap_or(failure)
}

fn allowed(scene: &Scene, proposal: &proposal::Proposal) -> Result<()> {
    let target = scene.target_key();
    let authority = Authority {
        manifest: &scene.rules.manifest,
        // Somebody has granted all that it asks for.
        grant: &Grant::of_all(&scene.rules.manifest),
        namespace: super::relation::NAMESPACE,
        job_uid: &scene.job.uid,
        target: &target,
        target_uid: scene.target.uid.as_deref(),
        extras: &scene.target.extras,
        seen: &|key: &ObjectKey| scene.sight(key),
    };
    authorize(proposal, &authority).map_err(|denied| permanent("MutationDenied", denied.sentence))
}

fn fits(function: &str, scene: &Scene, bytes: usize) -> Result<()> {
    let limits = &scene.rules.limits;
    if bytes > limits.output_bytes as usize { Err(over(function, &limits.too_large_an_answer())) } else { Ok(()) }
}

fn over(function: &str, why: &str) -> Failure {
    Failure::retryable("PluginLimitExceeded", format!("{function} exceeded a limit: {why}"))
}

fn garbage(function: &str, why: &str) -> Failure {
    Failure::retryable("PluginTrapped", format!("{function} returned garbage: {why}"))
}

fn permanent(reason: &str, message: String) -> Failure {
    Failure::permanent(reason, message)
}
