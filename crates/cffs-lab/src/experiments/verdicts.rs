//! The verdicts as a table for a page: each experiment, how many claims it confirms, and those it does not.

use super::outcome::{Claim, Outcome, shown};

/// The lines of the table, with a line that adds up before it.
pub fn table(results: &[(&str, Outcome)]) -> Vec<String> {
    let all = results.iter().flat_map(|(_, o)| &o.claims);
    let (held, claims) = (all.clone().filter(|c| c.holds()).count(), all.count());
    let mut lines = vec![
        format!("{held} of {claims} claims and targets are confirmed."),
        String::new(),
        "| experiment | confirmed | not confirmed: bound, our figure |".into(),
        "| --- | --- | --- |".into(),
    ];
    lines.extend(results.iter().map(|(_, outcome)| row(outcome)));
    lines
}

fn row(outcome: &Outcome) -> String {
    let held = outcome.claims.iter().filter(|c| c.holds()).count();
    let others: Vec<String> = outcome.claims.iter().filter(|c| !c.holds()).map(failed).collect();
    let untested = match outcome.untested.len() {
        0 => String::new(),
        n => format!(", {n} not tested"),
    };
    let cell = others.join("; ").replace('|', "\\|");
    format!("| `{}` | {held} of {}{untested} | {cell} |", outcome.name, outcome.claims.len())
}

fn failed(claim: &Claim) -> String {
    let sign = if claim.smaller { "≤" } else { "≥" };
    format!("{}: {sign} {}, **{}**", claim.text, shown(claim.paper), shown(claim.ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_confirmed_stands_there_with_both_figures() {
        let claims = vec![
            Claim::at_least("reads", 7.0, 8.7),
            Claim::at_least("a|b", 5.0, 2.25),
            Claim::at_most("loss in %", 30.0, 37.1),
        ];
        let untested = vec![("threads".to_string(), "no time".to_string())];
        let outcome = Outcome { name: "x".into(), claims, untested, ..Outcome::default() };
        let lines = table(&[("X", outcome)]);
        assert_eq!(lines[0], "1 of 3 claims and targets are confirmed.");
        assert_eq!(
            lines.last().unwrap(),
            "| `x` | 1 of 3, 1 not tested | a\\|b: ≥ 5.00, **2.25**; loss in %: ≤ 30.0, **37.1** |"
        );
    }
}
