//! Printing of dumps: one field on a line, one element of a list on a line, what is within further to the right.

use crate::text::{printable, time_string};
use cffs::dump::{Fields, Value};
use std::io::{self, Write};

const STEP: usize = 2;

/// Prints a dump.
pub fn print(out: &mut impl Write, value: &Value) -> io::Result<()> {
    match value {
        Value::Fields(f) => block(out, f, 0),
        Value::List(list) => {
            for (i, v) in list.iter().enumerate() {
                if i > 0 {
                    writeln!(out)?;
                }
                print(out, v)?;
            }
            Ok(())
        }
        v => writeln!(out, "{}", scalar(v)),
    }
}

/// What fits behind a name on a line.
fn is_scalar(v: &Value) -> bool {
    !matches!(v, Value::List(_) | Value::Fields(_))
}

fn scalar(v: &Value) -> String {
    match v {
        Value::Flag(b) => (if *b { "yes" } else { "no" }).into(),
        Value::Number(n) => n.to_string(),
        Value::Time(t) => time_string(*t, true),
        Value::Text(t) => printable(t.as_bytes()),
        Value::Bytes(b) => format!("\"{}\"", printable(b)),
        Value::List(_) | Value::Fields(_) => String::new(),
    }
}

fn label(name: &str, v: &Value) -> String {
    let shown_as_date = matches!(v, Value::Time(_));
    name.strip_suffix("_ns").filter(|_| shown_as_date).unwrap_or(name).replace('_', " ")
}

/// Fields one below the other.
fn block(out: &mut impl Write, f: &Fields, indent: usize) -> io::Result<()> {
    let width = f.0.iter().filter(|(_, v)| is_scalar(v)).map(|(n, v)| label(n, v).len()).max().unwrap_or(0);
    for (name, v) in &f.0 {
        let name = label(name, v);
        if is_scalar(v) {
            let line = format!("{:indent$}{name:width$}  {}", "", scalar(v));
            writeln!(out, "{}", line.trim_end())?;
        } else {
            nested(out, &name, v, indent)?;
        }
    }
    Ok(())
}

fn nested(out: &mut impl Write, name: &str, v: &Value, indent: usize) -> io::Result<()> {
    match v {
        Value::List(list) if list.is_empty() => writeln!(out, "{:indent$}{name}: none", ""),
        Value::List(list) => {
            writeln!(out, "{:indent$}{name}: {}", "", list.len())?;
            list.iter().try_for_each(|v| element(out, v, indent + STEP))
        }
        Value::Fields(f) => {
            writeln!(out, "{:indent$}{name}:", "")?;
            block(out, f, indent + STEP)
        }
        v => writeln!(out, "{:indent$}{name}  {}", "", scalar(v)),
    }
}

/// An element of a list: its scalars on one line, the rest below.
fn element(out: &mut impl Write, v: &Value, indent: usize) -> io::Result<()> {
    let Value::Fields(f) = v else { return writeln!(out, "{:indent$}{}", "", scalar(v)) };
    let parts: Vec<String> =
        f.0.iter().filter(|(_, v)| is_scalar(v)).map(|(n, v)| format!("{} {}", label(n, v), scalar(v))).collect();
    writeln!(out, "{:indent$}{}", "", parts.join("  "))?;
    for (name, v) in f.0.iter().filter(|(_, v)| !is_scalar(v)) {
        match v {
            // An inode within an entry: a line of its own.
            Value::Fields(_) => {
                write!(out, "{:width$}{}: ", "", label(name, v), width = indent + STEP)?;
                let mut line = Vec::new();
                element(&mut line, v, indent + STEP)?;
                out.write_all(line.trim_ascii_start())?;
            }
            v => nested(out, &label(name, v), v, indent + STEP)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_below_each_other_and_elements_on_a_line() {
        let mut inode = Fields::new();
        inode.put("inode", 17u64).put("extents", Vec::<Fields>::new());
        let mut entry = Fields::new();
        entry.put("name", Value::Bytes(b"a\x1b".to_vec())).put("embedded", inode).put("kind", "link");
        let mut top = Fields::new();
        top.put("block", 5u64).put("checksum_ok", false).put("entries", vec![entry]);
        let mut out = Vec::new();
        print(&mut out, &top.into()).unwrap();
        let expected = "block        5\nchecksum ok  no\nentries: 1\n  name \"a\\u{1b}\"  kind link\n    embedded: inode 17\n      extents: none\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
