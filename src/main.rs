//! The `hotrow` command.

fn main() -> std::process::ExitCode {
    hotrow::cli::main()
}
