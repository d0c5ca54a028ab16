//! What is traced: classes of spans, switched on and off one by one.

use std::fmt;
use std::str::FromStr;

/// A set of classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes(u32);

impl Classes {
    /// Nothing.
    pub const NONE: Classes = Classes(0);
    /// Operations of the file system: create, read, rename and the like; mounting and unmounting.
    pub const OP: Classes = Classes(1);
    /// Messages of the kernel, where the file system is mounted.
    pub const MESSAGE: Classes = Classes(1 << 1);
    /// Cache misses, and waits for the transfers of others.
    pub const CACHE: Classes = Classes(1 << 2);
    /// Work of the readahead thread.
    pub const READAHEAD: Classes = Classes(1 << 3);
    /// Writing dirty data back.
    pub const WRITEBACK: Classes = Classes(1 << 4);
    /// Commits and checkpoints, and waits for them.
    pub const JOURNAL: Classes = Classes(1 << 5);
    /// Regrouping, scrubs, the wake-ups of the background thread.
    pub const BACKGROUND: Classes = Classes(1 << 6);
    /// Requests of devices.
    pub const DEVICE: Classes = Classes(1 << 7);
    /// Everything but what a replay needs.
    pub const ALL: Classes = Classes(0xFF);
    /// What a replay needs of each operation beside its arguments, names among it. It comes with the operations: where
    /// this is on, they are.
    pub const REPLAY: Classes = Classes(1 << 8);

    /// Each class with its name.
    pub const NAMES: [(&str, Classes); 9] = [
        ("op", Classes::OP),
        ("message", Classes::MESSAGE),
        ("cache", Classes::CACHE),
        ("readahead", Classes::READAHEAD),
        ("writeback", Classes::WRITEBACK),
        ("journal", Classes::JOURNAL),
        ("background", Classes::BACKGROUND),
        ("device", Classes::DEVICE),
        ("replay", Classes::REPLAY),
    ];

    /// As a number, a bit for each class.
    pub fn bits(self) -> u32 {
        self.0
    }

    pub(super) fn from_bits(bits: u32) -> Classes {
        Classes(bits & (Classes::ALL.0 | Classes::REPLAY.0))
    }

    /// The classes of both.
    #[must_use]
    pub const fn with(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }

    /// Whether they have a class in common.
    pub const fn meets(self, other: Classes) -> bool {
        self.0 & other.0 != 0
    }
}

impl fmt::Display for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Classes::NAMES.iter().filter(|(_, c)| self.meets(*c)).map(|(name, _)| *name).collect();
        f.write_str(&if names.is_empty() { "none".into() } else { names.join(",") })
    }
}

impl FromStr for Classes {
    type Err = String;

    /// `all` (but `replay`), `none`, or names separated by commas or plus signs. With `replay` comes `op`.
    fn from_str(text: &str) -> Result<Classes, String> {
        let mut all = Classes::NONE;
        if text.is_empty() {
            return Err("no class is named: use all, none or a list".into());
        }
        for name in text.split([',', '+']).map(str::trim).filter(|n| !n.is_empty()) {
            let known = Classes::NAMES.iter().find(|(n, _)| *n == name).map(|(_, c)| *c);
            all = all.with(match name {
                "all" => Classes::ALL,
                "none" => Classes::NONE,
                _ => known.ok_or_else(|| {
                    let names: Vec<&str> = Classes::NAMES.iter().map(|(n, _)| *n).collect();
                    format!("'{name}' is no class: use all, none or {}", names.join(", "))
                })?,
            });
        }
        Ok(if all.meets(Classes::REPLAY) { all.with(Classes::OP) } else { all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sets() {
        assert_eq!("all".parse(), Ok(Classes::ALL));
        assert!(!Classes::ALL.meets(Classes::REPLAY), "names are recorded by those alone who ask for them");
        assert_eq!("replay".parse(), Ok(Classes::REPLAY.with(Classes::OP)));
        assert_eq!(Classes::from_bits(u32::MAX), Classes::ALL.with(Classes::REPLAY));
        let two: Classes = "op+ device".parse().unwrap();
        assert_eq!((two, two.to_string().as_str()), (Classes::OP.with(Classes::DEVICE), "op,device"));
        assert!(two.meets(Classes::OP) && !two.meets(Classes::CACHE));
        assert_eq!(Classes::NONE.to_string(), "none");
        assert!("op,everything".parse::<Classes>().unwrap_err().contains("no class"));
    }
}
