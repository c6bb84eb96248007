# Sourced by the scripts that build for another target.

# Installs Debian packages that are not installed yet.
packages() {
    local missing=() package root=()
    for package; do
        dpkg-query --show --showformat='${Status}' "$package" 2> /dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || root=(sudo)
    "${root[@]}" apt-get update --quiet=2
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install --quiet=2 --yes --no-install-recommends "${missing[@]}" > /dev/null
}

# Everything is built once. Only the arithmetic is worth optimizing (Cargo.toml does that).
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false CARGO_PROFILE_DEV_OPT_LEVEL=0
# Warnings of this workspace. Cargo hides those of other crates.
export RUSTFLAGS="-D warnings"
