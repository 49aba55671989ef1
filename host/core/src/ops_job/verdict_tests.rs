//! Tests of `verdict`.
