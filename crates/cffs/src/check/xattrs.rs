//! Extended attributes: the chain of blocks, the lists, and access control lists.

use super::checker::Checker;
use super::report::Class;
use crate::acl::Acl;
use crate::format::xattr::{ChainBlock, Namespace, Xattr, chain_max, decode_list};
use crate::format::{BlockAddr, BlockId, BlockKind, FileType, Inode, META_HEADER_SIZE};

/// The chain of an inode as far as it can be followed.
#[derive(Default)]
struct Chain {
    blocks: Vec<BlockAddr>,
    list: Vec<u8>,
    /// Why it could not be followed further.
    broken: Option<String>,
}

impl Checker<'_> {
    fn chain(&mut self, inode: &Inode) -> Chain {
        let mut chain = Chain::default();
        let mut addr = inode.xattr_block;
        while addr != 0 {
            let index = chain.blocks.len();
            if addr >= self.g.total_blocks {
                chain.broken = Some(format!("block {addr} lies outside the file system"));
                break;
            }
            if index >= chain_max(self.g.block_size()) || chain.blocks.contains(&addr) {
                chain.broken = Some("the chain does not end".into());
                break;
            }
            let block = self.meta(BlockId { kind: BlockKind::Xattr, addr, owner: inode.ino });
            let head = block.and_then(|b| match ChainBlock::decode(&b) {
                Ok(head) if head.index as usize != index => Err(format!("block {addr} is number {}", head.index)),
                Ok(head) => Ok((head, b[META_HEADER_SIZE..META_HEADER_SIZE + head.used].to_vec())),
                Err(c) => Err(c.0),
            });
            match head {
                Ok((head, piece)) => {
                    chain.blocks.push(addr);
                    chain.list.extend(piece);
                    addr = head.next;
                }
                Err(what) => {
                    // The block belongs to the inode all the same.
                    chain.blocks.push(addr);
                    chain.broken = Some(what);
                    break;
                }
            }
        }
        chain
    }

    /// Fragments of the blocks of extended attributes, and whether these are all there are.
    pub(super) fn xattr_frags(&mut self, inode: &Inode) -> (u64, bool) {
        if inode.xattr_block == 0 {
            return (0, true);
        }
        // It was read a moment ago, and is not read again.
        self.inventory.xattr_chains.remove(&inode.ino).unwrap_or((0, false))
    }

    pub(super) fn check_xattr(&mut self, inode: &Inode) {
        if !inode.has_xattrs() {
            return;
        }
        let chain = self.chain(inode);
        for addr in &chain.blocks {
            self.claim_block(*addr, inode.ino);
        }
        let whole = chain.broken.is_none();
        if inode.xattr_block != 0 {
            let frags = chain.blocks.len() as u64 * self.g.frags_per_block();
            self.inventory.xattr_chains.insert(inode.ino, (frags, whole));
        }
        if let Some(what) = chain.broken {
            self.inode_problem(Class::XattrBlock, inode.ino, what);
        }
        let mut all = Vec::new();
        let mut read = decode_list(&inode.xattrs, true, &mut all);
        if whole && read.is_ok() {
            read = decode_list(&chain.list, false, &mut all);
        }
        if let Err(c) = read {
            self.inode_problem(Class::XattrList, inode.ino, c.0);
            return;
        }
        for x in &all {
            self.check_attribute(inode, x);
        }
    }

    fn check_attribute(&mut self, inode: &Inode, x: &Xattr) {
        let file_type = inode.file_type();
        let name = || String::from_utf8_lossy(&x.full_name()).into_owned();
        let fits = match x.namespace {
            Namespace::User => matches!(file_type, FileType::Regular | FileType::Directory),
            Namespace::AclAccess => file_type != FileType::Symlink,
            Namespace::AclDefault => file_type == FileType::Directory,
            Namespace::Trusted | Namespace::Security => true,
        };
        if !fits {
            self.inode_problem(Class::XattrList, inode.ino, format_args!("{} on a file of type {file_type:?}", name()));
            return;
        }
        if !x.namespace.is_acl() {
            return;
        }
        let wrong = match Acl::from_xattr(&x.value) {
            Err(e) => Some(e.to_string()),
            Ok(None) => Some("a list without entries".into()),
            Ok(Some(acl)) if x.namespace == Namespace::AclAccess && acl.mode() != inode.mode & 0o777 => {
                Some(format!("it stands for mode {:03o}, the inode has {:03o}", acl.mode(), inode.mode & 0o777))
            }
            Ok(Some(_)) => None,
        };
        if let Some(what) = wrong {
            self.inode_problem(Class::XattrAcl, inode.ino, format_args!("{}: {what}", name()));
        }
    }
}
