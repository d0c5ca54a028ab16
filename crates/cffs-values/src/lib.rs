//! What a dump consists of: named values in an order that makes sense to a reader, for JSON and for printing alike.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

/// A value of a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A number.
    Number(u64),
    /// A time in nanoseconds since 1970; JSON has the number.
    Time(i64),
    /// Text of this program.
    Text(String),
    /// Bytes of the image, most likely a name: JSON has them as text, and in hexadecimal too (`KEY_hex`) where that is only
    /// similar.
    Bytes(Vec<u8>),
    /// Several of a kind.
    List(Vec<Value>),
    /// A structure.
    Fields(Fields),
}

/// Named values in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub Vec<(&'static str, Value)>);

impl Fields {
    /// None yet.
    pub fn new() -> Fields {
        Fields::default()
    }

    /// One value, for more to follow.
    pub fn of(name: &'static str, value: impl Into<Value>) -> Fields {
        Fields(vec![(name, value.into())])
    }

    /// Adds one.
    pub fn put(&mut self, name: &'static str, value: impl Into<Value>) -> &mut Fields {
        self.0.push((name, value.into()));
        self
    }

    /// Adds one that most structures of the kind do not have, where it is there.
    pub fn put_some(&mut self, name: &'static str, value: Option<impl Into<Value>>) -> &mut Fields {
        if let Some(v) = value {
            self.put(name, v);
        }
        self
    }

    /// Adds a list of structures, which `fill` makes of `items`.
    pub fn put_list<T>(
        &mut self,
        name: &'static str,
        items: impl IntoIterator<Item = T>,
        mut fill: impl FnMut(&mut Fields, T),
    ) -> &mut Fields {
        let one = |item| {
            let mut f = Fields::new();
            fill(&mut f, item);
            f
        };
        self.put(name, items.into_iter().map(one).collect::<Vec<_>>())
    }

    /// Adds all of another structure.
    pub fn append(&mut self, other: Fields) -> &mut Fields {
        self.0.extend(other.0);
        self
    }

    /// The value of this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// What is wrong, as a list that is left out where it is empty.
    pub fn problems(&mut self, list: impl IntoIterator<Item = String>) {
        self.problems_as("problems", list);
    }

    /// The same under another name.
    pub fn problems_as(&mut self, name: &'static str, list: impl IntoIterator<Item = String>) {
        let list: Vec<String> = list.into_iter().collect();
        if !list.is_empty() {
            self.put(name, list);
        }
    }
}

impl Value {
    /// A number in hexadecimal with eight or sixteen digits: magic numbers, hashes, identities.
    pub fn hex(n: impl Into<u64>, digits: usize) -> Value {
        Value::Text(format!("{:#0width$x}", n.into(), width = digits + 2))
    }

    /// A value within structures and lists, as in `entries.3.name`.
    pub fn at(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(self, |value, step| match value {
            Value::Fields(f) => f.get(step),
            Value::List(l) => l.get(step.parse::<usize>().ok()?),
            _ => None,
        })
    }
}

macro_rules! number {
    ($($t:ty)*) => {
        $(impl From<$t> for Value {
            fn from(n: $t) -> Value {
                Value::Number(n as u64)
            }
        })*
    };
}
number!(u8 u16 u32 u64 usize);

impl From<bool> for Value {
    fn from(b: bool) -> Value {
        Value::Flag(b)
    }
}
impl From<&str> for Value {
    fn from(s: &str) -> Value {
        Value::Text(s.into())
    }
}
impl From<String> for Value {
    fn from(s: String) -> Value {
        Value::Text(s)
    }
}
impl From<Fields> for Value {
    fn from(f: Fields) -> Value {
        Value::Fields(f)
    }
}
impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(list: Vec<T>) -> Value {
        Value::List(list.into_iter().map(Into::into).collect())
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Flag(b) => s.serialize_bool(*b),
            Value::Number(n) => s.serialize_u64(*n),
            Value::Time(t) => s.serialize_i64(*t),
            Value::Text(t) => s.serialize_str(t),
            Value::Bytes(b) => s.serialize_str(&String::from_utf8_lossy(b)),
            Value::List(l) => {
                let mut seq = s.serialize_seq(Some(l.len()))?;
                for v in l {
                    seq.serialize_element(v)?;
                }
                seq.end()
            }
            Value::Fields(f) => f.serialize(s),
        }
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
            if let Value::Bytes(b) = value
                && std::str::from_utf8(b).is_err()
            {
                map.serialize_entry(&format!("{name}_hex"), &hex(b))?;
            }
        }
        map.end()
    }
}
