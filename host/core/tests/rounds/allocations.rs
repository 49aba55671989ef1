//! Allocations of rounds per target, which are the same on every machine. One allocator counts them for each thread.
//!
//! The bench allocates too, for its stand-in of the cluster. Each bound is a little above the count on the day it was set.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::answers::evict_and_wait;
use crate::bench::Bench;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    COUNT.with(|count| count.set(count.get().wrapping_add(1)));
}

#[allow(unsafe_code, reason = "an allocator is unsafe by its nature; this one hands everything on")]
// SAFETY: every call goes unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the allocations per target of a job, from its first round until all its targets wait for their pods to go.
fn for_each_of(targets: usize) -> usize {
    let names: Vec<String> = (0..targets).map(|index| format!("p{index}")).collect();
    let mut bench = Bench::new(Bench::targets(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    names.iter().for_each(|name| bench.pod(name, &format!("u-{name}")));
    let before = COUNT.with(Cell::get);
    bench.settle(&mut evict_and_wait);
    COUNT.with(Cell::get).wrapping_sub(before).checked_div(targets).unwrap_or_default()
}

#[test]
fn a_target_costs_as_many_allocations_in_a_large_job_as_in_a_small_one() {
    let [small, large] = [50, 200].map(for_each_of);
    println!("{small} allocations for each of 50 targets, {large} for each of 200");
    assert!(large <= 420, "{large}");
    assert!(
        large <= small.saturating_mul(5) / 4,
        "{small} and {large}: something is done for every target in each round"
    );
}
