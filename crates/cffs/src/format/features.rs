//! Feature flags of the superblock.

/// Incompatible feature: inodes stand in chunks outside the directories (`--no-embed`).
pub const INCOMPAT_NO_EMBED: u64 = 1 << 0;
/// Incompatible feature: the log is on a device of its own.
pub const INCOMPAT_EXTERNAL_LOG: u64 = 1 << 1;
/// Incompatible feature: metadata carries another identity than the uuid's, since that was changed.
pub const INCOMPAT_METADATA_UUID: u64 = 1 << 2;
/// Incompatible feature: file data has checksums, in tables that take space at the start of each allocation group.
pub const INCOMPAT_DATA_SUMS: u64 = 1 << 3;
/// Compatible feature: conventional placement instead of groups (`--no-group`).
pub const COMPAT_NO_GROUP: u64 = 1 << 0;
/// Compatible feature: directory blocks stand in the data groups (`--dir-blocks=with-data`, the 1997 placement).
pub const COMPAT_DIRS_WITH_DATA: u64 = 1 << 1;
/// Compatible feature: there are, or were, files with the flags *immutable* or *append-only*. Who mounts must ask whether a
/// file may be written when it is opened.
pub const COMPAT_IMMUTABLE_FILES: u64 = 1 << 2;

/// Read-only compatible feature: what each user uses is kept in a quota file, and limited.
pub const RO_COMPAT_USER_QUOTA: u64 = 1 << 0;
/// The same for groups.
pub const RO_COMPAT_GROUP_QUOTA: u64 = 1 << 1;
/// The same for projects.
pub const RO_COMPAT_PROJECT_QUOTA: u64 = 1 << 2;
/// Read-only compatible feature: there are, or were, access control lists. Who writes must keep them in step with the
/// permission bits, and who mounts must have the kernel enforce them.
pub const RO_COMPAT_ACL: u64 = 1 << 3;
/// Read-only compatible feature: the counters say how much space is allocated and was never written. Who writes must count it, because a
/// device that stores only what is written keeps room for it.
pub const RO_COMPAT_UNWRITTEN: u64 = 1 << 4;

pub(super) const INCOMPAT_NAMES: [(u64, &str); 4] = [
    (INCOMPAT_NO_EMBED, "no-embed"),
    (INCOMPAT_EXTERNAL_LOG, "external-log"),
    (INCOMPAT_METADATA_UUID, "metadata-uuid"),
    (INCOMPAT_DATA_SUMS, "data-sums"),
];
pub(super) const COMPAT_NAMES: [(u64, &str); 3] = [
    (COMPAT_NO_GROUP, "no-group"),
    (COMPAT_DIRS_WITH_DATA, "dirs-with-data"),
    (COMPAT_IMMUTABLE_FILES, "immutable-files"),
];
pub(super) const RO_COMPAT_NAMES: [(u64, &str); 5] = [
    (RO_COMPAT_USER_QUOTA, "user-quota"),
    (RO_COMPAT_GROUP_QUOTA, "group-quota"),
    (RO_COMPAT_PROJECT_QUOTA, "project-quota"),
    (RO_COMPAT_ACL, "acl"),
    (RO_COMPAT_UNWRITTEN, "unwritten"),
];
