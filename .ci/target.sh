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

# Installs the standard library of a target. The array `std` then has the arguments that cargo needs for it. If rustup
# cannot fetch the library, it is compiled from the sources of Debian's newer compiler, by that compiler.
target() {
    std=()
    ! rustup target add "$1" || return 0
    local folder=$PWD/target/debian-rust package
    if [ ! -e "$folder/usr/bin/rustc" ]; then
        mkdir -p "$folder/packages"
        local names=(rustc-web rust-web-src libstd-rust-web-1.96 libstd-rust-web-dev libllvm22 lld-22 liblld-22)
        (cd "$folder/packages" && apt-get download --quiet=2 "${names[@]}")
        for package in "$folder"/packages/*.deb; do dpkg --extract "$package" "$folder"; done
    fi
    export LD_LIBRARY_PATH=$folder/usr/lib/x86_64-linux-gnu:$folder/usr/lib/llvm-22/lib
    export PATH=$folder/usr/lib/llvm-22/bin:$PATH
    # -Zbuild-std is an unstable option.
    export RUSTC=$folder/usr/bin/rustc RUSTDOC=$folder/usr/bin/rustdoc RUSTC_BOOTSTRAP=1
    std=(-Zbuild-std=std,panic_unwind,test)
}

# Everything is built once. Only the arithmetic is worth optimizing (Cargo.toml does that).
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false CARGO_PROFILE_DEV_OPT_LEVEL=0
