//! The rows of a table that scrolls: the shown rows and the chosen row.

use crate::screen::Keypress;

/// The rows of a table, as indexes of the shown items.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    indexes: Vec<usize>,
    /// The chosen row. It keeps its place while the items move, so that a user at the top sees the items that need attention.
    chosen: usize,
    /// The first shown row.
    first: usize,
    /// The number of rows for which the last frame had room.
    room: usize,
}

impl Rows {
    /// Takes other rows and keeps the place, if it still exists.
    pub(crate) fn set(&mut self, indexes: Vec<usize>) {
        self.indexes = indexes;
        self.clamp();
    }

    /// Goes to the first row.
    pub(crate) fn go_home(&mut self) {
        self.chosen = 0;
    }

    /// Handles a key that scrolls. Ignores other keys.
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

    /// Returns the rows for `room` lines: the place of the first row, and the indexes of the items.
    pub(crate) fn visible(&mut self, room: usize) -> (usize, &[usize]) {
        self.room = room;
        let last = self.indexes.len().saturating_sub(room);
        let lowest = self.chosen.saturating_add(1).saturating_sub(room);
        self.first = self.first.max(lowest).min(self.chosen).min(last);
        let end = self.first.saturating_add(room).min(self.indexes.len());
        (self.first, self.indexes.get(self.first..end).unwrap_or_default())
    }

    /// Returns the place of the chosen row, and the index of its item.
    pub(crate) fn chosen(&self) -> Option<(usize, usize)> {
        Some((self.chosen, *self.indexes.get(self.chosen)?))
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.indexes.len()
    }

    fn clamp(&mut self) {
        self.chosen = self.chosen.min(self.indexes.len().saturating_sub(1));
    }
}
