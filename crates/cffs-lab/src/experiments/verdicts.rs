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
    lines.extend(results.iter().flat_map(|(_, outcome)| rows(outcome)));
    lines
}

/// One for the experiment, with the first claim that is not confirmed, and one for each other such claim.
fn rows(outcome: &Outcome) -> Vec<String> {
    let held = outcome.claims.iter().filter(|c| c.holds()).count();
    let mut others = outcome.claims.iter().filter(|c| !c.holds()).map(|c| failed(c).replace('|', "\\|"));
    let untested = match outcome.untested.len() {
        0 => String::new(),
        n => format!(", {n} not tested"),
    };
    let first = others.next().unwrap_or_default();
    let first = format!("| `{}` | {held} of {}{untested} | {first} |", outcome.name, outcome.claims.len());
    std::iter::once(first).chain(others.map(|other| format!("| | | {other} |"))).collect()
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
        let rows = ["| `x` | 1 of 3, 1 not tested | a\\|b: ≥ 5.00, **2.25** |", "| | | loss in %: ≤ 30.0, **37.1** |"];
        assert_eq!(lines[lines.len() - 2..], rows);
    }
}
