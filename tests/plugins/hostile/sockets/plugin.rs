//! A plugin that connects to the address that its target is named after, and reports the outcome as an event. A host
//! must refuse it, because it imports a network, or deny the connection, if the manifest knows of the denial.

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target, export};

/// The action `Sockets`.
#[derive(Debug)]
pub struct Sockets;

impl Action for Sockets {
    fn operate(_: &Job, target: &Target) -> Result<Proposal> {
        let answered = std::net::TcpStream::connect((target.name(), 80));
        Ok(Proposal::new().event("Answered", format!("{answered:?}")))
    }

    fn progress(_: &Job, _: &Target) -> Result<Report> {
        Ok(Report::succeeded())
    }
}

export!(
    Sockets,
    manifest = r#"{"schema": 1, "name": "sockets", "version": "0.1.0", "action": "Sockets", "target": ["Pod"]}"#
);
