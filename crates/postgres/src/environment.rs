//! What `libpq` programs find outside the URL: the `PG…` variables and the password file. The URL
//! always wins.
//!
//! Variables come through a function, so that tests need not change those of their process. What
//! the values mean is left to `config`.

use std::fmt;
use std::path::{Path, PathBuf};

use holdtight_core::LockError;
use tokio_postgres::config::Host;

/// Looks a variable up; an empty one counts as missing, as in `libpq`.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables of this process.
pub(crate) fn process(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The address with the ports of `PGPORT`, if it names hosts and no port. The driver would take
/// 5432 as said.
pub(crate) fn with_ports(address: &str, var: Lookup<'_>) -> String {
    let Some(ports) = var("PGPORT") else { return address.to_owned() };
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    let has_port = |host: &str| host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    if hosts.is_empty() || hosts.split(',').any(has_port) {
        return address.to_owned();
    }
    let ports: Vec<&str> = ports.split(',').collect();
    let hosts: Vec<String> = hosts
        .split(',')
        .enumerate()
        .map(|(place, host)| format!("{host}:{}", ports.get(place).unwrap_or(&ports[0])))
        .collect();
    format!("{scheme}://{login}{}{path}", hosts.join(","))
}

/// Fills in hosts, user, database and the like where `base` has none.
pub(crate) fn fill(base: &mut tokio_postgres::Config, var: Lookup<'_>) -> Result<(), LockError> {
    if base.get_hosts().is_empty()
        && let Some(hosts) = var("PGHOST")
    {
        for host in hosts.split(',') {
            base.host(host);
        }
        for port in var("PGPORT").iter().flat_map(|ports| ports.split(',')) {
            base.port(port.parse().map_err(|_| bad("PGPORT", "a port, or one per host"))?);
        }
        let (hosts, ports) = (base.get_hosts().len(), base.get_ports().len());
        if ports > 1 && ports != hosts {
            return Err(bad("PGPORT", "a port, or one per host"));
        }
    }
    if base.get_user().is_none() {
        var("PGUSER").map(|user| base.user(user));
    }
    if base.get_dbname().is_none() {
        var("PGDATABASE").map(|name| base.dbname(name));
    }
    if base.get_password().is_none() {
        var("PGPASSWORD").map(|password| base.password(password));
    }
    if base.get_options().is_none() {
        var("PGOPTIONS").map(|options| base.options(options));
    }
    if base.get_application_name().is_none() {
        var("PGAPPNAME").map(|name| base.application_name(name));
    }
    if base.get_connect_timeout().is_none()
        && let Some(seconds) = var("PGCONNECT_TIMEOUT")
    {
        let seconds = seconds.parse().map_err(|_| bad("PGCONNECT_TIMEOUT", "whole seconds"))?;
        if seconds > 0 {
            base.connect_timeout(std::time::Duration::from_secs(seconds));
        }
    }
    Ok(())
}

/// A variable whose value cannot be used. The value is not repeated.
pub(crate) fn bad(variable: &str, allowed: &str) -> LockError {
    LockError::invalid_config(format!("{variable} in the environment must be {allowed}"))
}

/// Passwords by host, port, database and user, as in `~/.pgpass`.
#[derive(Clone, Default)]
pub(crate) struct PasswordFile {
    lines: Vec<[String; 5]>,
}

impl PasswordFile {
    /// Reads the file that the URL names, or `PGPASSFILE`, or `~/.pgpass`. A missing one holds
    /// nothing; so does one that others may read, with a warning.
    pub(crate) fn read(named: Option<PathBuf>, var: Lookup<'_>) -> Self {
        let home = || Some(Path::new(&var("HOME")?).join(".pgpass"));
        let Some(path) = named.or_else(|| var("PGPASSFILE").map(PathBuf::from)).or_else(home)
        else {
            return Self::default();
        };
        if is_readable_by_others(&path) {
            tracing::warn!(
                "the password file {} is not used because others may read it: chmod 0600 it",
                path.display()
            );
            return Self::default();
        }
        Self::parse(&std::fs::read_to_string(path).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self { lines: lines.filter_map(fields).collect() }
    }

    /// The password of the first line that fits.
    pub(crate) fn find(
        &self,
        host: &Host,
        port: u16,
        base: &tokio_postgres::Config,
    ) -> Option<&str> {
        let host = match host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        };
        let user = base.get_user().unwrap_or_default();
        let database = base.get_dbname().unwrap_or(user);
        let port = port.to_string();
        let fits = |line: &&[String; 5]| {
            let local = line[0] == "localhost" && host.starts_with('/');
            let same = |at: usize, value: &str| line[at] == "*" || line[at] == value;
            (local || same(0, &host)) && same(1, &port) && same(2, database) && same(3, user)
        };
        self.lines.iter().find(fits).map(|line| line[4].as_str())
    }
}

impl fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordFile({} lines)", self.lines.len())
    }
}

/// `host:port:database:user:password`, where a backslash takes the next character as it is.
fn fields(line: &str) -> Option<[String; 5]> {
    let (mut fields, mut at) = ([const { String::new() }; 5], 0);
    let mut rest = line.trim_end_matches('\r').chars();
    while let Some(char) = rest.next() {
        match char {
            '\\' => fields[at].push(rest.next()?),
            ':' if at < 4 => at += 1,
            ':' => break,
            _ => fields[at].push(char),
        }
    }
    (at == 4).then_some(fields)
}

#[cfg(unix)]
fn is_readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_readable_by_others(_: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(url: &str) -> tokio_postgres::Config {
        url.parse().unwrap()
    }

    #[test]
    fn the_url_wins_and_variables_fill_what_it_leaves_open() {
        let var = |name: &str| match name {
            "PGHOST" => Some("db1,/run/pg".to_owned()),
            "PGPORT" => Some("6001,6002".to_owned()),
            "PGUSER" => Some("ann".to_owned()),
            "PGDATABASE" => Some("app".to_owned()),
            "PGPASSWORD" => Some("pw".to_owned()),
            "PGAPPNAME" => Some("mine".to_owned()),
            _ => None,
        };
        let mut silent = base("postgres://");
        fill(&mut silent, &var).unwrap();
        assert_eq!(silent.get_hosts().len(), 2);
        assert_eq!(silent.get_hosts()[1], Host::Unix("/run/pg".into()));
        assert_eq!(silent.get_ports(), [6001, 6002]);
        assert_eq!((silent.get_user(), silent.get_dbname()), (Some("ann"), Some("app")));
        assert_eq!(silent.get_password(), Some(&b"pw"[..]));
        let mut full = base("postgres://bob:x@h:1/d?application_name=n");
        fill(&mut full, &var).unwrap();
        assert_eq!(full, base("postgres://bob:x@h:1/d?application_name=n"));
    }

    #[test]
    fn a_port_that_the_url_leaves_open_comes_from_the_variable() {
        let var = |name: &str| (name == "PGPORT").then(|| "6001".to_owned());
        assert_eq!(with_ports("postgres://a:b@h/d", &var), "postgres://a:b@h:6001/d");
        assert_eq!(with_ports("postgres://[::1],h2/d", &var), "postgres://[::1]:6001,h2:6001/d");
        for said in ["postgres://h:5/d", "postgres://[::1]:5/d", "postgres:///d", "postgres://u@"] {
            assert_eq!(with_ports(said, &var), said);
        }
        assert_eq!(with_ports("postgres://h/d", &|_| None), "postgres://h/d");
        let bad = |name: &str| (name.starts_with("PG")).then(|| "x".to_owned());
        let text = fill(&mut base("postgres://"), &bad).unwrap_err().to_string();
        assert!(text.contains("PGPORT"), "{text}");
    }

    #[test]
    fn the_first_line_that_fits_gives_the_password() {
        let file = PasswordFile::parse(
            "# all of it\nnonsense\ndb\\:1:5432:app:ann:a\\:b\\\\c\nlocalhost:*:*:ann:local\n*:*:*:bob:any:ignored\n",
        );
        let find = |host: Host, url: &str| file.find(&host, 5432, &base(url)).map(str::to_owned);
        let tcp = |name: &str| Host::Tcp(name.to_owned());
        assert_eq!(find(tcp("db:1"), "postgres://ann@h/app").as_deref(), Some("a:b\\c"));
        assert_eq!(find(tcp("db:1"), "postgres://ann@h/other"), None);
        assert_eq!(
            find(Host::Unix("/run/pg".into()), "postgres://ann@h/x").as_deref(),
            Some("local")
        );
        assert_eq!(find(tcp("elsewhere"), "postgres://bob@h/x").as_deref(), Some("any"));
        assert_eq!(find(tcp("elsewhere"), "postgres://eve@h/x"), None);
        assert!(!format!("{file:?}").contains("local"));
    }
}
