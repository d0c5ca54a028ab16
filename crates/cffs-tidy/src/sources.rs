//! The files of a crate, as modules with what they define, import and mention.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Meta, UseTree, Visibility};

/// Names of the modules from the crate's root to one.
pub(crate) type ModPath = Vec<String>;

/// An import: where it leads, and whether others may use it from here.
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    pub(crate) public: bool,
}

/// One file of a crate, without what only tests see.
#[derive(Default)]
pub(crate) struct Module {
    /// For messages.
    pub(crate) file: PathBuf,
    /// Names of items that it defines.
    pub(crate) items: BTreeSet<String>,
    /// Modules that it declares, in files of their own.
    pub(crate) children: BTreeSet<String>,
    /// Names that it imports.
    pub(crate) imports: BTreeMap<String, Import>,
    /// Modules of which it imports everything.
    pub(crate) globs: Vec<Import>,
    /// Paths in its code, as written.
    pub(crate) paths: BTreeSet<Vec<String>>,
    /// All names that its code mentions.
    pub(crate) mentions: BTreeSet<String>,
}

/// The modules of one crate.
pub struct Sources {
    pub(crate) modules: BTreeMap<ModPath, Module>,
}

/// Reads a crate from the folder with its `lib.rs` or `main.rs`.
///
/// # Errors
/// A text that names the file which cannot be read or parsed.
pub fn crate_sources(src: &Path) -> Result<Sources, String> {
    let root = ["lib.rs", "main.rs"].iter().map(|n| src.join(n)).find(|p| p.is_file());
    let root = root.ok_or_else(|| format!("{}: neither lib.rs nor main.rs", src.display()))?;
    let name = root.file_name().map(PathBuf::from).unwrap_or_default();
    Sources::read(&name, &|file| std::fs::read_to_string(src.join(file)).ok())
}

impl Sources {
    /// Reads a crate whose root is `root`; `read` returns the text of a file, if there is such a file.
    ///
    /// # Errors
    /// A text that names the file which is missing or cannot be parsed.
    pub fn read(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Sources, String> {
        let mut sources = Sources { modules: BTreeMap::new() };
        sources.add(Vec::new(), root.to_path_buf(), Path::new(""), read)?;
        Ok(sources)
    }

    /// Adds a file, and those of the modules that it declares, which lie in the folder `dir`.
    fn add(
        &mut self,
        path: ModPath,
        file: PathBuf,
        dir: &Path,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<(), String> {
        let text = read(&file).ok_or_else(|| format!("{}: no such file", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let mut module = Module { file, ..Module::default() };
        for item in &parsed.items {
            Reader { module: &mut module }.visit_item(item);
        }
        let children: Vec<String> = module.children.iter().cloned().collect();
        self.modules.insert(path.clone(), module);
        for child in children {
            let (flat, nested) = (dir.join(format!("{child}.rs")), dir.join(&child).join("mod.rs"));
            let file = if read(&flat).is_some() { flat } else { nested };
            let below = [path.as_slice(), std::slice::from_ref(&child)].concat();
            self.add(below, file, &dir.join(child), read)?;
        }
        Ok(())
    }
}

/// Whether an item is compiled for tests alone.
fn for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|a| match &a.meta {
        Meta::List(list) if a.path().is_ident("cfg") => list.tokens.to_string() == "test",
        _ => a.path().is_ident("test"),
    })
}

/// Fills a [`Module`].
struct Reader<'a> {
    module: &'a mut Module,
}

impl Reader<'_> {
    fn import(&mut self, prefix: &[String], tree: &UseTree, public: bool) {
        let with = |name: &str| [prefix, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(p) => self.import(&with(&p.ident.to_string()), &p.tree, public),
            UseTree::Group(g) => g.items.iter().for_each(|t| self.import(prefix, t, public)),
            UseTree::Glob(_) => self.module.globs.push(Import { path: prefix.to_vec(), public }),
            UseTree::Name(n) => {
                let name = n.ident.to_string();
                // `a::{self}` imports `a`.
                let path = if name == "self" { prefix.to_vec() } else { with(&name) };
                let name = path.last().cloned().unwrap_or(name);
                self.module.imports.insert(name, Import { path, public });
            }
            UseTree::Rename(r) => {
                let path = if r.ident == "self" { prefix.to_vec() } else { with(&r.ident.to_string()) };
                self.module.imports.insert(r.rename.to_string(), Import { path, public });
            }
        }
    }

    /// Paths in the arguments of a macro, which are tokens to us.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(i) => {
                    if colons != 2 {
                        self.path(std::mem::take(&mut path));
                    }
                    path.push(i.to_string());
                    colons = 0;
                }
                TokenTree::Punct(p) if p.as_char() == ':' && !path.is_empty() => colons += 1,
                other => {
                    self.path(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(g) = other {
                        self.tokens(g.stream());
                    }
                }
            }
        }
        self.path(path);
    }

    fn path(&mut self, path: Vec<String>) {
        if let Some(first) = path.first() {
            self.module.mentions.insert(first.clone());
        }
        if path.len() > 1 {
            self.module.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attrs, name): (&[Attribute], Option<String>) = match item {
            Item::Const(i) => (&i.attrs, Some(i.ident.to_string())),
            Item::Enum(i) => (&i.attrs, Some(i.ident.to_string())),
            Item::Fn(i) => (&i.attrs, Some(i.sig.ident.to_string())),
            Item::Macro(i) => (&i.attrs, i.ident.as_ref().map(ToString::to_string)),
            Item::Static(i) => (&i.attrs, Some(i.ident.to_string())),
            Item::Struct(i) => (&i.attrs, Some(i.ident.to_string())),
            Item::Trait(i) => (&i.attrs, Some(i.ident.to_string())),
            Item::Type(i) => (&i.attrs, Some(i.ident.to_string())),
            Item::Union(i) => (&i.attrs, Some(i.ident.to_string())),
            Item::Impl(i) => (&i.attrs, None),
            Item::Mod(i) => (&i.attrs, None),
            Item::Use(i) => (&i.attrs, None),
            _ => (&[], None),
        };
        if for_tests(attrs) {
            return;
        }
        self.module.items.extend(name);
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        match &item.content {
            None => drop(self.module.children.insert(item.ident.to_string())),
            // A module within the file: what it has counts as the file's.
            Some((_, items)) => {
                self.module.items.insert(item.ident.to_string());
                items.iter().for_each(|i| self.visit_item(i));
            }
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let public = !matches!(item.vis, Visibility::Inherited);
        if item.leading_colon.is_none() {
            self.import(&[], &item.tree, public);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.path(path.segments.iter().map(|s| s.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.tokens(mac.tokens.clone());
        visit::visit_macro(self, mac);
    }
}
