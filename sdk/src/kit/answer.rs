//! Checks the answers of an action with the code of the host.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use oarlock_contract::authorize::{Authority, authorize};
use oarlock_contract::causes::causes;
use oarlock_contract::grant::Grant;
use oarlock_contract::limits::{CAPS, PluginLimits};
use oarlock_contract::object_key::ObjectKey;
use oarlock_contract::proposal;

use super::call_data::{CallData, Exceeded, Lacks};
use crate::{Failure, Plugin, Result, kit, wit};

mod convert {
    //! Converts the SDK's bindings in the same way as the host converts its
    //! own.

    oarlock_contract::conversions!(crate::wit::bindings::exports::oarlock::action::handler);
}

/// The manifest and the limits of a plugin.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) manifest: kit::Manifest,
    pub(super) limits: PluginLimits,
}

impl Rules {
    /// Returns the rules of a plugin.
    pub(super) fn of<A: Plugin>() -> Result<Self> {
        let manifest = kit::manifest::<A>().map_err(|error| permanent("ManifestInvalid", causes(&error)))?;
        let limits = PluginLimits::of(&manifest.limits, &manifest.limits, &CAPS);
        Ok(Self { manifest, limits })
    }
}

/// Calls a function of the plugin. Ends a call that exceeds a limit, as the
/// host does.
pub(super) fn limited<T>(function: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic: Box<dyn Any + Send>| {
        match (panic.downcast_ref::<Exceeded>(), panic.downcast_ref::<Lacks>()) {
            (Some(Exceeded(why)), _) => Err(over(function, why)),
            (_, Some(Lacks(why))) => Err(permanent("KitLacks", format!("In this test, {why}."))),
            _ => resume_unwind(panic),
        }
    })
}

/// Returns the registration, or the refusal of the host.
pub(super) fn registration(call_data: &CallData, registration: crate::Registration) -> Result<proposal::Registration> {
    let (registration, bytes) = convert::registration(registration.into()).map_err(|why| garbage("setup", &why))?;
    fits("setup", call_data, bytes)?;
    registration.check(&call_data.rules.manifest).map_err(|why| permanent("RegistrationRefused", why))?;
    Ok(registration)
}

/// Checks a proposal as the host does.
pub(super) fn proposal(function: &str, call_data: &CallData, proposal: wit::Proposal) -> Result<()> {
    let (proposal, bytes) = convert::proposal(proposal).map_err(|why| garbage(function, &why))?;
    fits(function, call_data, bytes)?;
    allowed(call_data, &proposal)
}

/// Returns a proposal in the types of the contract.
pub(super) fn converted(proposal: wit::Proposal) -> Result<proposal::Proposal> {
    convert::proposal(proposal).map(|(proposal, _)| proposal).map_err(|why| garbage("operate", &why))
}

/// Returns a report in the types of the contract.
pub(super) fn converted_report(report: wit::Report) -> Result<proposal::Report> {
    convert::report(report).map(|(report, _)| report).map_err(|why| garbage("progress", &why))
}

/// Returns a failure in the types of the contract.
pub(super) fn converted_failure(failure: Failure) -> proposal::CallFailure {
    convert::failure(failure.into()).0
}

/// Checks a report as the host does.
pub(super) fn report(call_data: &CallData, report: wit::Report) -> Result<()> {
    let (report, bytes) = convert::report(report).map_err(|why| garbage("progress", &why))?;
    fits("progress", call_data, bytes)?;
    allowed(call_data, &report.proposal)
}

/// Checks a failure as the host does, and returns the failure to report.
pub(super) fn failure(function: &str, call_data: &CallData, failure: Failure) -> Failure {
    let (_, bytes) = convert::failure(failure.clone().into());
    fits(function, call_data, bytes).err().unwrap_or(failure)
}

fn allowed(call_data: &CallData, proposal: &proposal::Proposal) -> Result<()> {
    let target = call_data.target_key();
    let authority = Authority {
        manifest: &call_data.rules.manifest,
        // The grant allows everything that the manifest asks for.
        grant: &Grant::of_all(&call_data.rules.manifest),
        namespace: call_data.namespace(),
        job_uid: &call_data.job.uid,
        target: &target,
        target_uid: call_data.target.uid.as_deref(),
        extras: &call_data.target.extras,
        seen: &|key: &ObjectKey| call_data.sight(key),
    };
    authorize(proposal, &authority).map_err(|denied| permanent("MutationDenied", denied.sentence))
}

fn fits(function: &str, call_data: &CallData, bytes: usize) -> Result<()> {
    let limits = &call_data.rules.limits;
    if bytes > limits.output_bytes as usize { Err(over(function, &limits.too_large_an_answer())) } else { Ok(()) }
}

fn over(function: &str, why: &str) -> Failure {
    Failure::retryable("PluginLimitExceeded", format!("{function} exceeded a limit: {why}"))
}

fn garbage(function: &str, why: &str) -> Failure {
    Failure::retryable("PluginTrapped", format!("{function} returned garbage: {why}"))
}

pub(super) fn permanent(reason: &str, message: String) -> Failure {
    Failure::permanent(reason, message)
}
