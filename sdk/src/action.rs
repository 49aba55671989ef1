//! The trait that a plugin implements, and the glue that exports it to the
//! host.

use crate::{Job, Proposal, Registration, Report, Result, Target};

/// The most bytes of a manifest. The host refuses a larger one.
pub const MANIFEST_LIMIT: usize = 64 * 1024;

/// The action that a plugin performs on one target. Implement it and name it in
/// `export!`.
///
/// The host calls each function at least once, and perhaps more often. So each
/// function has to be pure: the same arguments and the same reads must give the
/// same answer. Nothing in memory outlives a call. Store values that have to
/// last in [`Proposal::extra`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an action",
    label = "needs `impl Action for {Self}`",
    note = "write `impl oarlock_sdk::Action for {Self}` with `operate` and `progress`"
)]
pub trait Action {
    /// Returns the related objects that the plugin needs. The default is none.
    ///
    /// # Errors
    ///
    /// If this fails, the host does not use the plugin, and shows the message.
    fn setup() -> Result<Registration> {
        Ok(Registration::new())
    }

    /// Proposes the changes that this target still needs. Proposes nothing once
    /// all changes are triggered.
    ///
    /// # Errors
    ///
    /// If this fails with a failure that is not retryable, the attempt has
    /// failed.
    fn operate(job: &Job, target: &Target) -> Result<Proposal>;

    /// Reports the progress of this target. If in doubt, report that it is
    /// processing.
    ///
    /// # Errors
    ///
    /// If this fails with a retryable failure, the state of the target stays as
    /// it was. Any other failure fails the target.
    fn progress(job: &Job, target: &Target) -> Result<Report>;

    /// Proposes to undo changes that were needed only during the work. The
    /// default is nothing: the host removes the remaining holds.
    ///
    /// # Errors
    ///
    /// If this fails with a failure that is not retryable, the host removes the
    /// holds.
    fn release(job: &Job, target: &Target) -> Result<Proposal> {
        let _ = (job, target);
        Ok(Proposal::new())
    }
}

/// An action with its manifest. Only `export!` implements it.
pub trait Plugin: Action {
    /// The manifest, as JSON text.
    const MANIFEST: &'static str;
}

/// Returns the bytes of a manifest for a custom section.
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

/// The component that exports the action `A` to the host.
#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[derive(Debug)]
pub struct Exported<A>(core::marker::PhantomData<A>);

#[cfg(target_family = "wasm")]
mod exported {
    //! Forwards the calls of the host to the action.

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
