//! Converts the types of the contract into core types. Only this file knows both.

oarlock_contract::conversions!(crate::run::bindings::action);
