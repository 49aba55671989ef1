//! Takes an author's `Action` and yields the four functions that the host
//! calls. May not decide anything.

use crate::{Job, Proposal, Registration, Report, Result, Target};

/// How large a manifest may be, in bytes. The host refuses a larger one.
pub const MANIFEST_LIMIT: usize = 64 * 1024;

/// What a plugin does to one target. Implement it and name it in `export!`.
///
/// Each function is called at least once, perhaps more often, and has to be
/// pure: it sees only what it is given and what it reads, and the same again
/// must give the same answer. Nothing in memory outlives a call; what has to be
/// kept goes into [`Proposal::extra`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an action",
    label = "needs `impl Action for {Self}`",
    note = "write `impl oarlock_sdk::Action for {Self}` with `operate` and `progress`"
)]
pub trait Action {
    /// Says which related objects the plugin needs. By default none.
    ///
    /// # Errors
    ///
    /// A failure keeps the plugin from being used; its message is shown.
    fn setup() -> Result<Registration> {
        Ok(Registration::new())
    }

    /// Proposes what is still missing for this target, and nothing once nothing
    /// is left to trigger.
    ///
    /// # Errors
    ///
    /// After a failure that is not retryable the attempt has failed.
    fn operate(job: &Job, target: &Target) -> Result<Proposal>;

    /// Finds out how far this target is. When unsure, it is processing.
    ///
    /// # Errors
    ///
    /// A retryable failure says nothing about the target; any other fails it.
    fn progress(job: &Job, target: &Target) -> Result<Report>;

    /// Takes back what was needed only while the work went on. By default
    /// nothing: holds that are left are taken away by the host.
    ///
    /// # Errors
    ///
    /// After a failure that is not retryable the host takes the holds away.
    fn release(job: &Job, target: &Target) -> Result<Proposal> {
        let _ = (job, target);
        Ok(Proposal::new())
    }
}

/// An action with its manifest. Implemented by `export!` alone.
pub trait Plugin: Action {
    /// The manifest, as JSON text.
    const MANIFEST: &'static str;
}

/// The bytes of a manifest, as a custom section needs them.
#[doc(hidden)]
#[must_use]
pub const fn section<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [b' '; N];
    let (mut rest, mut to): (&[u8], &mut [u8]) = (text.as_bytes(), &mut bytes);
    while let ([byte, more @ ..], [slot, slots @ ..]) = (rest, to) {
        *slot = *byte;
        (rest, to) = (more, slots);
    }
    bytes
}

/// The component's side of the contract, for the action `A`.
#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[derive(Debug)]
pub struct Exported<A>(core::marker::PhantomData<A>);

#[cfg(target_family = "wasm")]
mod exported {
    //! Takes the host's calls and yields the action's answers.

    use super::{Action, Exported};
    use crate::backend;
    use crate::wit::{Failure, Guest, Proposal, Registration, Report};
    use crate::{Job, Target};

    impl<A: Action> Guest for Exported<A> {
        fn setup() -> Result<Registration, Failure> {
            A::setup().map(Into::into).map_err(Into::into)
        }

        fn operate(job: backend::Job, target: backend::Target) -> Result<Proposal, Failure> {
            A::operate(&Job(job), &Target(target)).map(Into::into).map_err(Into::into)
        }

        fn progress(job: backend::Job, target: backend::Target) -> Result<Report, Failure> {
            A::progress(&Job(job), &Target(target)).map(Into::into).map_err(Into::into)
        }

        fn release(job: backend::Job, target: backend::Target) -> Result<Proposal, Failure> {
            A::release(&Job(job), &Target(target)).map(Into::into).map_err(Into::into)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::section;

    #[test]
    fn section_holds_exactly_the_bytes_of_the_text() {
        assert_eq!(section::<5>("{\"a\"}"), *b"{\"a\"}");
    }
}
