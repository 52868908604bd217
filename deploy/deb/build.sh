#!/usr/bin/env bash
# Builds the Debian package from a binary: `deploy/deb/build.sh BINARY ARCHITECTURE FOLDER` writes FOLDER/weir_VERSION_ARCHITECTURE.deb.
# The version is that of the binary. A static binary runs on every Debian and Ubuntu with systemd 249 or later.
set -euo pipefail
binary=$1 architecture=$2 folder=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$("$binary" --version | cut -d ' ' -f 2)
root=$(mktemp -d)
trap 'rm -r "$root"' EXIT
chmod 755 "$root"

install -D -m 0755 "$binary" "$root/usr/bin/weir"
for unit in "$here"/../systemd/*.service "$here"/../systemd/*.timer; do
  install -D -m 0644 "$unit" "$root/usr/lib/systemd/system/$(basename "$unit")"
done
# A package installs into /usr/bin, a person into /usr/local/bin.
sed -i 's,/usr/local/bin/weir,/usr/bin/weir,' "$root"/usr/lib/systemd/system/*
# The script after the installation makes /etc/weir/weir.env of it, with an API key of its own.
install -D -m 0644 "$here/../systemd/weir.env.example" "$root/usr/share/weir/weir.env.example"
for shell in bash:bash-completion/completions/weir zsh:zsh/vendor-completions/_weir fish:fish/vendor_completions.d/weir.fish; do
  mkdir -p "$root/usr/share/$(dirname "${shell#*:}")"
  "$binary" completions "${shell%%:*}" > "$root/usr/share/${shell#*:}"
done
mkdir -p "$root/usr/share/doc/weir"
cp "$here/copyright" "$root/usr/share/doc/weir/copyright"
gzip --best --no-name < "$here/../../docs/changelog.md" > "$root/usr/share/doc/weir/changelog.gz"
find "$root/usr/share" -type f -exec chmod 0644 {} +

mkdir "$root/DEBIAN"
cat > "$root/DEBIAN/control" <<CONTROL
Package: weir
Version: $version
Architecture: $architecture
Maintainer: The Weir project <https://github.com/weir-webhooks/weir>
Homepage: https://github.com/weir-webhooks/weir
Section: net
Priority: optional
Recommends: ca-certificates
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Description: outbound webhooks at exactly the rate the other side can take
 Weir accepts events, and sends each to its destinations under their rate
 limits, with retries, signatures and a dashboard. Embedded it needs nothing
 else; over PostgreSQL and Redis any number of processes share the work.
CONTROL
install -m 0755 "$here/postinst" "$here/prerm" "$here/postrm" "$root/DEBIAN/"
# The same sources make the same package.
find "$root" -exec touch --no-dereference --date "@${SOURCE_DATE_EPOCH:-0}" {} +
mkdir -p "$folder"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0} dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$root" "$folder/weir_${version}_${architecture}.deb"
