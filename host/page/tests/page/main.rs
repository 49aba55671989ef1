//! Pages as browsers get them: their size, their ids, their escapes, and the changes from one page to the next.

#![cfg(test)]

mod changes;
mod documents;
mod lists;
mod samples;
mod words;
