//! Layers: a file may use what stands below it, never what stands above.

use crate::graph::Arrow;

/// Modules, or crates, that stand side by side. Of two that use each other's names the later one of the list stands below.
pub type Layer = [&'static str];

/// The arrows that lead from a layer to one above it, or between two neighbours of one layer. `layers` begins above. `name`
/// says which member of a layer a path belongs to; what belongs to none is an error of its own.
///
/// # Errors
/// A text that names a module without a layer.
pub fn upward<'a>(
    layers: &[&Layer],
    arrows: &'a [Arrow],
    name: &dyn Fn(&[String]) -> Option<String>,
) -> Result<Vec<&'a Arrow>, String> {
    let rank = |member: &str| {
        let at = layers.iter().position(|layer| layer.contains(&member));
        at.ok_or_else(|| format!("{member} has no layer: add it to the list of layers, and to ARCHITECTURE.md"))
    };
    let mut found = Vec::new();
    for arrow in arrows {
        let (Some(from), Some(to)) = (name(&arrow.from), name(&arrow.to)) else { continue };
        if from != to && rank(&from)? >= rank(&to)? {
            found.push(arrow);
        }
    }
    Ok(found)
}
