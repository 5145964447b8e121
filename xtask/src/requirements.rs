//! What the tests need beside cargo, as a table. A store that needs a server adds one row here and
//! nothing else.
//!
//! Rows ask for programs, not packages: a Redis built by hand is as good as Debian's.

/// One thing that must be, or may be, on the machine.
#[derive(Debug)]
pub(crate) struct Requirement {
    pub(crate) name: &'static str,
    /// Every one of these must be found; the first one tells the version.
    pub(crate) programs: &'static [&'static str],
    pub(crate) version: &'static [&'static str],
    pub(crate) place: Place,
    pub(crate) source: Source,
    pub(crate) need: Need,
}

/// Where its programs are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `PATH`, the directories for system programs, and our own tools.
    Usual,
    /// Where PostgreSQL keeps its server programs, which is not on `PATH`.
    PostgresBindir,
}

/// Where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A package of Debian and its descendants.
    Debian(&'static str),
    /// A crate, built into `target/tools`: as it is shipped, or quickly.
    Crate { name: &'static str, version: &'static str, quickly: bool },
}

/// What its absence means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Tests fail without it, or outside CI are skipped.
    Tests,
    /// Used if present, for the reason given.
    Optional(&'static str),
}

pub(crate) const REQUIREMENTS: &[Requirement] = &[
    server("Redis", &["redis-server", "redis-cli"], &["--version"], "redis-server"),
    Requirement {
        place: Place::PostgresBindir,
        ..server("PostgreSQL", &["postgres", "initdb", "pg_ctl"], &["--version"], "postgresql")
    },
    server("PgBouncer", &["pgbouncer"], &["--version"], "pgbouncer"),
    server("Memcached", &["memcached"], &["--version"], "memcached"),
    server("etcd", &["etcd"], &["--version"], "etcd-server"),
    server("etcdctl", &["etcdctl"], &["version"], "etcd-client"),
    tool(&"hidane", &["--version"], "0.6.0"),
    server("tmux", &["tmux"], &["-V"], "tmux"),
    // Peers and small programs that tests of interoperability, TLS and clocks use.
    server("Node.js", &["node"], &["--version"], "nodejs"),
    server("npm", &["npm"], &["--version"], "npm"),
    server("Python", &["python3"], &["--version"], "python3"),
    server("pip", &["pip3"], &["--version"], "python3-pip"),
    server("OpenSSL", &["openssl"], &["version"], "openssl"),
    server("C compiler", &["cc"], &["--version"], "gcc"),
    Requirement {
        need: Need::Optional("checks licences and sources of dependencies; CI installs it"),
        source: Source::Crate { name: "cargo-deny", version: "0.20.2", quickly: true },
        ..tool(&"cargo-deny", &["--version"], "0.20.2")
    },
];

const fn server(
    name: &'static str,
    programs: &'static [&'static str],
    version: &'static [&'static str],
    package: &'static str,
) -> Requirement {
    let source = Source::Debian(package);
    Requirement { name, programs, version, place: Place::Usual, source, need: Need::Tests }
}

/// A program that is a crate; its one binary has the crate's name.
const fn tool(
    name: &'static &'static str,
    args: &'static [&'static str],
    version: &'static str,
) -> Requirement {
    Requirement {
        name,
        programs: std::slice::from_ref(name),
        version: args,
        place: Place::Usual,
        source: Source::Crate { name, version, quickly: false },
        need: Need::Tests,
    }
}
