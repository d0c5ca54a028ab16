//! Extended attributes: damaged ones are removed, and a mode that contradicts its access control list is corrected.

use super::repairer::Repairer;
use crate::acl::Acl;
use crate::check::Class;
use crate::error::Result;
use crate::format::xattr::{ChainBlock, Namespace, Xattr, chain_max, decode_list};
use crate::format::{BlockAddr, BlockId, BlockKind, FileType, Ino, Inode, META_HEADER_SIZE};

/// The chain of blocks of an inode.
struct Chain {
    blocks: Vec<BlockAddr>,
    list: Vec<u8>,
    wrong: Option<String>,
}

/// Whether a file of a type can have an attribute of this kind, with this value.
fn possible(x: &Xattr, file_type: FileType) -> bool {
    match x.namespace {
        Namespace::User => matches!(file_type, FileType::Regular | FileType::Directory),
        Namespace::Trusted | Namespace::Security => true,
        Namespace::AclAccess | Namespace::AclDefault => {
            let fits = match x.namespace {
                Namespace::AclDefault => file_type == FileType::Directory,
                _ => file_type != FileType::Symlink,
            };
            fits && matches!(Acl::from_xattr(&x.value), Ok(Some(_)))
        }
    }
}

impl Repairer<'_> {
    fn chain(&mut self, inode: &Inode, owner: Ino) -> Chain {
        let mut chain = Chain { blocks: Vec::new(), list: Vec::new(), wrong: None };
        let mut addr = inode.xattr_block;
        while addr != 0 && chain.wrong.is_none() {
            let index = chain.blocks.len();
            if addr >= self.g.total_blocks {
                chain.wrong = Some(format!("attribute block {addr} lies outside the file system"));
                break;
            }
            if index >= chain_max(self.g.block_size()) || chain.blocks.contains(&addr) {
                chain.wrong = Some("the chain of attribute blocks does not end".into());
                break;
            }
            match self.vol.meta(BlockId { kind: BlockKind::Xattr, addr, owner }) {
                Ok(block) => match ChainBlock::decode(&block) {
                    Ok(head) if head.index as usize == index => {
                        chain.blocks.push(addr);
                        chain.list.extend_from_slice(&block[META_HEADER_SIZE..META_HEADER_SIZE + head.used]);
                        addr = head.next;
                    }
                    Ok(head) => chain.wrong = Some(format!("attribute block {addr} is number {}", head.index)),
                    Err(c) => chain.wrong = Some(c.0),
                },
                Err(bad) => chain.wrong = Some(bad.text()),
            }
        }
        chain
    }

    /// The blocks of an inode's attributes, as far as they can be followed.
    pub(super) fn xattr_blocks(&mut self, inode: &Inode) -> Vec<BlockAddr> {
        if inode.xattr_block == 0 { Vec::new() } else { self.chain(inode, inode.ino).blocks }
    }

    /// Fragments of the blocks of an inode's attributes.
    pub(super) fn xattr_frags(&mut self, inode: &Inode) -> u64 {
        self.xattr_blocks(inode).len() as u64 * self.g.frags_per_block()
    }

    /// Checks and claims the attributes of an inode.
    pub(super) fn attributes(&mut self, inode: &mut Inode, owner: Ino, place: &str) -> Result<()> {
        if !inode.has_xattrs() {
            return Ok(());
        }
        let file_type = inode.file_type();
        let mut all = Vec::new();
        let inline = decode_list(&inode.xattrs, true, &mut all).map_err(|c| c.0);
        let inline = inline.and_then(|()| match all.iter().find(|x| !possible(x, file_type)) {
            Some(x) => Err(format!("impossible attribute {}", String::from_utf8_lossy(&x.full_name()))),
            None => Ok(()),
        });
        if let Err(what) = inline {
            self.must_fix(Class::XattrList, place, what, "remove the attributes in the inode")?;
            inode.xattrs.clear();
            all.clear();
        }
        if inode.xattr_block != 0 {
            let chain = self.chain(inode, owner);
            let kept = all.len();
            let mut wrong = chain.wrong.map(|what| (Class::XattrBlock, what));
            if owner != inode.ino {
                wrong.get_or_insert((Class::XattrBlock, "its attributes carry another number".into()));
            }
            if wrong.is_none() {
                wrong = match decode_list(&chain.list, false, &mut all) {
                    Err(c) => Some((Class::XattrList, c.0)),
                    Ok(()) => all[kept..].iter().find(|x| !possible(x, file_type)).map(|x| {
                        let name = String::from_utf8_lossy(&x.full_name()).into_owned();
                        (Class::XattrList, format!("impossible attribute {name}"))
                    }),
                };
            }
            if wrong.is_none() {
                let mut claimed = Vec::new();
                for addr in &chain.blocks {
                    if !self.space.claim_meta(*addr) {
                        wrong = Some((Class::XattrBlock, format!("attribute block {addr} is used twice")));
                        break;
                    }
                    claimed.push(*addr);
                }
                if wrong.is_some() {
                    claimed.into_iter().for_each(|addr| self.space.release_block(addr));
                }
            }
            if let Some((class, what)) = wrong {
                self.must_fix(class, place, what, "remove the attributes in blocks of their own")?;
                inode.xattr_block = 0;
                all.truncate(kept);
            }
        }
        let list = all.iter().find(|x| x.namespace == Namespace::AclAccess);
        if let Some(Ok(Some(acl))) = list.map(|x| Acl::from_xattr(&x.value))
            && acl.mode() != inode.mode & 0o777
        {
            let what = format!("mode {:03o}, by its access control list {:03o}", inode.mode & 0o777, acl.mode());
            if self.fix(Class::XattrAcl, place, what, "make the mode that of the list")? {
                inode.mode = inode.mode & !0o777 | acl.mode();
            }
        }
        Ok(())
    }
}
