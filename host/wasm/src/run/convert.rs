//! Converts the contract's types into core types. The only file that knows both.

oarlock_contract::conversions!(crate::run::bindings::action);
