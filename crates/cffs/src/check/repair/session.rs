//! Asks before each change, and records what was done and what was refused.

use super::report::{Action, Ask};
use crate::check::Class;
use crate::error::{Error, Result};
use std::collections::HashSet;

/// The questions of a repair and their answers.
pub(super) struct Session<'a> {
    pub(super) ask: Ask<'a>,
    pub(super) refused: HashSet<(Class, String, String)>,
    pub(super) actions: Vec<Action>,
    pub(super) total: u64,
    pub(super) max: usize,
}

impl Session<'_> {
    pub(super) fn fix(&mut self, class: Class, place: &str, text: String, action: &str) -> bool {
        let key = (class, place.to_string(), text.clone());
        if self.refused.contains(&key) {
            return false;
        }
        let a = Action { class, place: place.to_string(), text, action: action.to_string() };
        if !(self.ask)(&a) {
            self.refused.insert(key);
            return false;
        }
        self.note(a);
        true
    }

    pub(super) fn must(&mut self, class: Class, place: &str, text: String, action: &str) -> Result<()> {
        if self.fix(class, place, text, action) {
            return Ok(());
        }
        Error::invalid(format!("{place}: nothing else can be repaired without this; nothing was changed"))
    }

    pub(super) fn note(&mut self, a: Action) {
        self.total += 1;
        if self.actions.len() < self.max {
            self.actions.push(a);
        }
    }
}
