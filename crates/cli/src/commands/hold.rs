//! `hold KEY` and `check`: a lock for the rest of a script, and whether it is still held.

#[cfg(target_os = "linux")]
mod platform {
    use crate::args::{CheckArgs, HoldArgs};
    use crate::context::Context;
    use crate::exit::Failure;
    use crate::{output, script};

    pub(crate) fn run(args: &HoldArgs, context: &Context) -> Result<u8, Failure> {
        script::take(args, context)
    }

    pub(crate) async fn check(args: CheckArgs, context: &Context) -> Result<u8, Failure> {
        script::check(args, context).await
    }

    /// Gives back what `hold` took, if anything.
    pub(crate) async fn release(
        key: Option<&str>,
        context: &Context,
    ) -> Result<Option<u8>, Failure> {
        script::release(key, context).await
    }

    /// Whether this script holds something.
    pub(crate) fn is_in_use() -> bool {
        !script::holds(&std::env::var(script::VARIABLE).unwrap_or_default()).is_empty()
    }

    /// Tells a shell that evaluates our answer to end.
    pub(crate) fn give_up(code: u8) {
        let _ = output::print(script::give_up(code));
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use crate::args::{CheckArgs, HoldArgs};
    use crate::context::Context;
    use crate::exit::Failure;
    use crate::output;

    const ONLY_LINUX: &str = "this needs Linux; use `run`, or `acquire` and `release`";

    pub(crate) fn run(_: &HoldArgs, _: &Context) -> Result<u8, Failure> {
        Err(Failure::usage(ONLY_LINUX))
    }

    pub(crate) async fn check(_: CheckArgs, _: &Context) -> Result<u8, Failure> {
        Err(Failure::usage(ONLY_LINUX))
    }

    pub(crate) async fn release(key: Option<&str>, _: &Context) -> Result<Option<u8>, Failure> {
        key.map(|_| Err(Failure::usage(ONLY_LINUX))).transpose()
    }

    pub(crate) fn is_in_use() -> bool {
        false
    }

    pub(crate) fn give_up(code: u8) {
        let _ = output::print(format_args!("exit {code}\n"));
    }
}

pub(crate) use platform::{check, give_up, is_in_use, release, run};
