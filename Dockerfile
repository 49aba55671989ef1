# The host and the shipped plugins in one static image that runs as a non-root user. The grants in the image are only for pods. To
# grant reboot or preflight, which make the host root on nodes, an admin must write the grant.
#
#   docker build -t oarlock .
#   docker run --rm oarlock manifests --deployment oarlock --pin /plugins/replace.wasm | kubectl apply -f -

# The target of Alpine links statically against musl. The image has the compiler that rust-toolchain.toml pins. A tag can move, so build
# a release from a digest:
#
#   docker buildx imagetools inspect rust:1.95.0-alpine --format '{{.Manifest.Digest}}'
#   docker build -t oarlock --build-arg RUST_IMAGE=rust:1.95.0-alpine@sha256:... .
ARG RUST_IMAGE=rust:1.95.0-alpine
FROM ${RUST_IMAGE} AS build
# Alpine signs these packages and gives the newest version for the release. Only musl gets into the final image.
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
