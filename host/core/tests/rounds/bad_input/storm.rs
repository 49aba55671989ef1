//! A cluster that refuses, loses and forgets at random, from a seed.

use std::cell::RefCell;
use std::rc::Rc;

use oarlock_core::requests::live_reads::LiveRead;
use oarlock_core::requests::writes::{Stopped, Write};

use crate::bench::weather::{Fate, Going, Look, Weather};

/// A random number generator with a seed.
#[derive(Clone, Debug)]
pub(super) struct Dice(pub(super) Rc<RefCell<u64>>);

impl Dice {
    /// Returns a number below `sides`.
    pub(super) fn roll(&self, sides: u64) -> u64 {
        let mut state = self.0.borrow_mut();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides.max(1)
    }
}

/// A cluster that answers `bad` of a hundred requests badly.
pub(super) struct Storm {
    pub(super) dice: Dice,
    pub(super) bad: u64,
}

impl Storm {
    fn strikes(&self) -> bool {
        self.dice.roll(100) < self.bad
    }
}

impl Weather for Storm {
    fn write(&mut self, _: &Write) -> Fate {
        if !self.strikes() {
            return Fate::Done;
        }
        let message = || "no".to_owned();
        Fate::Stopped(match self.dice.roll(9) {
            0 => return Fate::Lost,
            1 => Stopped::Unknown { message: message() },
            2 => Stopped::Conflict,
            3 => Stopped::Gone,
            4 => Stopped::Blocked { message: message(), retry_after: None },
            5 => Stopped::Blocked { message: message(), retry_after: Some(0) },
            6 => Stopped::Throttled { retry_after: [None, Some(0), Some(u32::MAX)][self.dice.roll(3) as usize] },
            7 => Stopped::NotSent,
            _ => Stopped::Refused { message: message() },
        })
    }

    fn records(&mut self) -> bool {
        self.dice.roll(200) >= self.bad
    }

    fn look(&mut self, _: &LiveRead) -> Look {
        match self.strikes() {
            false => Look::Answered,
            true => [Look::Silent, Look::Refused][self.dice.roll(2) as usize],
        }
    }

    fn goes(&mut self) -> Going {
        [Going::Stays, Going::Terminates(0), Going::Terminates(30), Going::Terminates(i64::MAX), Going::Gone]
            [self.dice.roll(5) as usize]
    }
}
