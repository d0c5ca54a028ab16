//! The page of dependencies against the manifests and the lock file.

use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// The members of the workspace that use a crate, by the name of that crate.
pub type Users = BTreeMap<String, BTreeSet<String>>;

const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

fn tables(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_table).into_iter().flatten()
}

fn parse(text: &str) -> Result<Table, String> {
    text.parse::<Table>().map_err(|e| e.to_string())
}

/// Direct dependencies of all `manifests` (texts of `Cargo.toml`) on crates that are none of them: for the program, for its
/// tests, for its build, and for one target only.
///
/// # Errors
/// What is wrong in a manifest.
pub fn external_dependencies(manifests: &[String]) -> Result<Users, String> {
    let parsed = manifests.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?;
    let name = |m: &Table| m.get("package").and_then(|p| p.get("name")).and_then(Value::as_str).map(str::to_owned);
    let members = parsed.iter().map(|m| name(m).ok_or("a manifest without a name")).collect::<Result<Vec<_>, _>>()?;
    let mut users = Users::new();
    for (manifest, member) in parsed.iter().zip(&members) {
        let targets = tables(manifest.get("target")).filter_map(|(_, target)| target.as_table());
        for (alias, dependency) in
            targets.chain([manifest]).flat_map(|table| KINDS.iter().flat_map(|kind| tables(table.get(*kind))))
        {
            let used = dependency.get("package").and_then(Value::as_str).unwrap_or(alias);
            if !members.iter().any(|m| m == used) {
                users.entry(used.to_owned()).or_default().insert(member.clone());
            }
        }
    }
    Ok(users)
}

/// Number of packages in a lock file that come from a registry: all but our own.
///
/// # Errors
/// What is wrong in the lock file.
pub fn locked_packages(lock: &str) -> Result<usize, String> {
    let lock = parse(lock)?;
    let packages = lock.get("package").and_then(Value::as_array).ok_or("a lock file without packages")?;
    Ok(packages.iter().filter(|p| p.get("source").is_some()).count())
}

/// What `page` says that is not so, a sentence each. Its table has a crate in the first column and the members that use
/// it in the second; its text says "`Cargo.lock` has N packages".
pub fn wrong_in_page(page: &str, users: &Users, packages: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    let rows = page.lines().skip_while(|line| !line.starts_with("| crate |")).skip(2);
    let rows = rows.map_while(|line| line.strip_prefix("| ")).map(|row| row.split(" | ").collect::<Vec<_>>());
    let mut missing: BTreeSet<&String> = users.keys().collect();
    for row in rows {
        let [name, used_by, ..] = row[..] else {
            wrong.push(format!("a row with too few columns: {row:?}"));
            continue;
        };
        let Some(members) = users.get(name) else {
            wrong.push(format!("{name} is no direct dependency of a member any more"));
            continue;
        };
        missing.remove(&name.to_owned());
        let said: BTreeSet<String> = used_by
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_')
            .filter(|word| *word == "cffs" || word.starts_with("cffs-"))
            .map(str::to_owned)
            .collect();
        if said != *members {
            wrong.push(format!("{name} is used by {members:?}, not by {said:?}"));
        }
    }
    wrong.extend(missing.iter().map(|name| format!("{name}, used by {:?}, has no line", users[*name])));
    let number = page.split("`Cargo.lock` has ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("nothing");
    if number != packages.to_string() {
        wrong.push(format!("Cargo.lock has {packages} packages that are not ours, and the page says {number}"));
    }
    wrong
}
