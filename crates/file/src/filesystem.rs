//! Which file systems can hold locks: only those of this machine.
//!
//! A network file system may forget, delay or not share file locks and cached pages, so two
//! machines, or two virtual machines on one host, would each believe their own copy. The decision
//! is a pure function of the type.

/// What is known about the file system under a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// Its name, for people.
    pub(crate) name: String,
    /// Whether its content goes with the power.
    pub(crate) volatile: bool,
}

/// The name of a file system that several machines may share.
pub(crate) type Remote = &'static str;

/// Reads the type of the file system that `directory` is on.
pub(crate) fn of(directory: &std::fs::File) -> std::io::Result<Result<FileSystem, Remote>> {
    let stat = rustix::fs::fstatfs(directory)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // The kernel's magic numbers have 32 bits; the field's width and sign differ between
        // machines.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "only the low 32 bits carry the number"
        )]
        Ok(by_magic(stat.f_type as u32))
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        const LOCAL: u64 = 0x1000; // MNT_LOCAL, the same on macOS and the BSDs
        Ok(if u64::from(stat.f_flags) & LOCAL == 0 {
            Err("a file system that is not local")
        } else {
            Ok(FileSystem { name: "a local file system".into(), volatile: false })
        })
    }
}

/// Judges a file system by the magic number that `statfs` gives on Linux.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn by_magic(magic: u32) -> Result<FileSystem, Remote> {
    let remote = match magic {
        0x6969 => "NFS",
        0x517B | 0xFE53_4D42 | 0xFF53_4D42 => "SMB/CIFS",
        0x6573_5546 => "FUSE or virtiofs",
        0x0102_1997 => "9p",
        0x00C3_6400 => "Ceph",
        0x5346_414F | 0x6B41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x564C => "NCP",
        0x0BD0_0BD0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x7461_636F => "OCFS2",
        0x0116_1970 => "GFS2",
        0x1983_0326 => "BeeGFS",
        0x2003_0528 => "OrangeFS",
        0xAAD7_AAEA => "PanFS",
        0x786F_4256 => "VirtualBox shared folders",
        _ => "",
    };
    if !remote.is_empty() {
        return Err(remote);
    }
    let (name, volatile) = match magic {
        0xEF53 => ("ext4", false),
        0x5846_5342 => ("xfs", false),
        0x9123_683E => ("btrfs", false),
        0xF2F5_2010 => ("f2fs", false),
        0x2FC1_2FC1 => ("zfs", false),
        0x794C_7630 => ("overlayfs", false),
        0xCA45_1A4E => ("bcachefs", false),
        0x0102_1994 => ("tmpfs", true),
        0x8584_58F6 => ("ramfs", true),
        other => return Ok(FileSystem { name: format!("type {other:#x}"), volatile: false }),
    };
    Ok(FileSystem { name: name.into(), volatile })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_the_network_are_refused_by_name() {
        let magics: [(u32, &str); 9] = [
            (0x6969, "NFS"),
            (0xFF53_4D42, "SMB"),
            (0xFE53_4D42, "SMB"),
            (0x6573_5546, "virtiofs"),
            (0x0102_1997, "9p"),
            (0x00C3_6400, "Ceph"),
            (0x0BD0_0BD0, "Lustre"),
            (0x5346_414F, "AFS"),
            (0x4750_4653, "GPFS"),
        ];
        for (magic, name) in magics {
            let found = by_magic(magic).unwrap_err();
            assert!(found.contains(name), "{found}");
        }
    }

    #[test]
    fn local_file_systems_are_taken_and_memory_ones_known_as_such() {
        for (magic, name, volatile) in
            [(0xEF53, "ext4", false), (0x5846_5342, "xfs", false), (0x0102_1994, "tmpfs", true)]
        {
            assert_eq!(by_magic(magic).unwrap(), FileSystem { name: name.into(), volatile });
        }
        assert!(by_magic(0x1234_5678).unwrap().name.contains("0x12345678"));
    }

    #[test]
    fn the_file_system_of_a_real_directory_is_read() {
        let proc = std::fs::File::open("/proc").unwrap();
        assert!(of(&proc).unwrap().unwrap().name.contains("0x9fa0"));
    }
}
