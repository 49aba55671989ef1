//! Rows of a table that scrolls: which are shown, and which one is chosen.

use crate::screen::Keypress;

/// The rows of a table, as indexes of what they show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    indexes: Vec<usize>,
    /// The chosen row. It stays in its place while what it shows moves: whoever looks at the top sees what needs eyes.
    chosen: usize,
    /// The first row that is shown.
    first: usize,
    /// Rows that the last frame had room for.
    room: usize,
}

impl Rows {
    /// Takes other rows, and keeps the place as far as there are any.
    pub(crate) fn set(&mut self, indexes: Vec<usize>) {
        self.indexes = indexes;
        self.clamp();
    }

    /// Goes to the first row.
    pub(crate) fn go_home(&mut self) {
        self.chosen = 0;
    }

    /// Does what a key asks for, if it is one that scrolls.
    pub(crate) fn press(&mut self, key: Keypress) {
        let page = self.room.max(1);
        self.chosen = match key {
            Keypress::Up => self.chosen.saturating_sub(1),
            Keypress::Down => self.chosen.saturating_add(1),
            Keypress::PageUp => self.chosen.saturating_sub(page),
            Keypress::PageDown => self.chosen.saturating_add(page),
            Keypress::Home => 0,
            Keypress::End => usize::MAX,
            Keypress::Filter | Keypress::Drawing | Keypress::Leave => self.chosen,
        };
        self.clamp();
    }

    /// The rows for `room` lines: the place of the first one, and what they show.
    pub(crate) fn visible(&mut self, room: usize) -> (usize, &[usize]) {
        self.room = room;
        let last = self.indexes.len().saturating_sub(room);
        let lowest = self.chosen.saturating_add(1).saturating_sub(room);
        self.first = self.first.max(lowest).min(self.chosen).min(last);
        let end = self.first.saturating_add(room).min(self.indexes.len());
        (self.first, self.indexes.get(self.first..end).unwrap_or_default())
    }

    /// The place of the chosen row, and what it shows.
    pub(crate) fn chosen(&self) -> Option<(usize, usize)> {
        Some((self.chosen, *self.indexes.get(self.chosen)?))
    }

    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.indexes.len()
    }

    fn clamp(&mut self) {
        self.chosen = self.chosen.min(self.indexes.len().saturating_sub(1));
    }
}
