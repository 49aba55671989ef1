//! A plugin that calls home. Takes an address from the target's name and yields whether somebody answered as an event.
//! May not be served: it imports a network, which no host offers.

use oarlock_sdk::{Action, Job, Proposal, Report, Result, Target, export};

/// The action.
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
