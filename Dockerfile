# The host and the shipped plugins in one static image that runs as nobody. Its grants are for pods alone: who grants reboot or
# preflight makes the host root on nodes, and does so by hand.
#
#   docker build -t oarlock .
#   docker run --rm oarlock manifests --deployment oarlock --pin /plugins/replace.wasm | kubectl apply -f -

# Alpine's own target links statically against musl. The compiler is the one that rust-toolchain.toml pins. Whoever may move that tag
# decides what is built, so build a release on a digest:
#
#   docker buildx imagetools inspect rust:1.95.0-alpine --format '{{.Manifest.Digest}}'
#   docker build -t oarlock --build-arg RUST_IMAGE=rust:1.95.0-alpine@sha256:... .
ARG RUST_IMAGE=rust:1.95.0-alpine
FROM ${RUST_IMAGE} AS build
# Packages signed by Alpine, in the newest version of the image's release: they build, and nothing of them but musl gets into the image.
RUN apk add --no-cache build-base && rustup target add wasm32-wasip2
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p oarlock --no-default-features --features jemalloc \
 && cargo build --release --locked --target wasm32-wasip2 -p addon -p dumplog -p exportimage -p replace -p restart -p reboot -p preflight \
 && mkdir -p /image/plugins /image/tmp && chmod 1777 /image/tmp \
 && mkdir -p /image/etc/ssl/certs && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
 && cp target/release/oarlock /image/ \
 && for plugin in addon dumplog exportimage replace restart reboot preflight; do cp target/wasm32-wasip2/release/$plugin.wasm /image/plugins/; done \
 && for plugin in replace restart; do /image/oarlock plugin grant /image/plugins/$plugin.wasm; done > /image/grants.yaml

FROM scratch
COPY --from=build /image/ /
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/oarlock"]
CMD ["host", "--plugins", "/plugins", "--listen", ":8080", "--log-format", "json"]
