//! Jobs as their users see them: text, terminal frames and JSON, each compared with the expected output.

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
