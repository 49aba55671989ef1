//! Jobs as their users see them: text, frames of a terminal, and JSON, each compared with what it must say.

#![cfg(test)]

mod documents;
mod flow_graphs;
mod flow_watches;
mod flows;
mod frames;
mod jobs;
mod models;
mod plans;
mod texts;
