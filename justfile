# What there is to run; `just --list` shows it. The two commands of the README need no `just`.

# the main job: train a network at half its natural memory
train *ARGS:
    cargo run --release -- train {{ARGS}}

# every test of the workspace
test:
    cargo test --workspace

# formatting, lints and documentation, as continuous integration wants them
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# pictures of pages for the documents, in docs/img (needs chromium)
screenshots:
    cargo test --release --package elbowroom-cli --features chromium --test page screenshots -- --ignored

# licences, duplicate versions and sources of dependencies
deny:
    cargo deny check bans licenses sources

# all that continuous integration runs
ci:
    bash .ci/run
