//! The results of experiments, for looking figures up.

use super::outcome::{Outcome, Table};

/// The results, for looking figures up.
#[derive(Clone, Copy)]
pub struct Results<'a>(pub &'a [(&'a str, Outcome)]);

impl Results<'_> {
    /// A figure: of an experiment, from the table whose title begins with `table`, the row whose name begins with `row`, the
    /// column `column`.
    ///
    /// # Errors
    /// The experiment's name, when it has no such figure.
    pub fn figure(&self, experiment: &'static str, table: &str, row: &str, column: &str) -> Result<f64, &'static str> {
        let look = |table: &Table| {
            let at = table.columns.iter().position(|c| c == column)?.checked_sub(1)?;
            table.rows.iter().find(|(name, _)| name.starts_with(row))?.1.get(at).copied()
        };
        look(self.table(experiment, table)?).ok_or(experiment)
    }

    /// How many claims about something are confirmed, and how many there are.
    ///
    /// # Errors
    /// The experiment's name, when it has no result.
    pub fn verdicts(&self, experiment: &'static str, about: &str) -> Result<(usize, usize), &'static str> {
        let claims = self.outcome(experiment)?.claims.iter().filter(|c| c.text.contains(about));
        Ok((claims.clone().filter(|c| c.holds()).count(), claims.count()))
    }

    /// The table of an experiment whose title begins with `title`.
    ///
    /// # Errors
    /// The experiment's name, when it has no such table.
    pub fn table(&self, experiment: &'static str, title: &str) -> Result<&Table, &'static str> {
        self.outcome(experiment)?.tables.iter().find(|t| t.title.starts_with(title)).ok_or(experiment)
    }

    fn outcome(&self, experiment: &'static str) -> Result<&Outcome, &'static str> {
        self.0.iter().find(|(_, o)| o.name == experiment).map(|(_, o)| o).ok_or(experiment)
    }
}
