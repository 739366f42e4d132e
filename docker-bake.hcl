# Images for linux/amd64 and linux/arm64 under one tag:  docker buildx bake        (see dockerfiles/README.md)
#
# A single architecture:  docker buildx bake --set '*.platform=linux/amd64' lab
# Without a registry:     docker buildx bake -f docker-bake.hcl -f dockerfiles/docker-bake.offline.hcl …  (ci/images.py)

variable "TAG" {
  default = "moelab"
}

variable "COMMIT" {
  default = "unknown"
}

variable "VERSION" {
  default = "0.1.0"
}

# Time stamp of everything in the images: the commit's, so that two builds of one commit are the same bytes.
variable "SOURCE_DATE_EPOCH" {
  default = "0"
}

group "default" {
  targets = ["lab"]
}

target "common" {
  context    = "."
  dockerfile = "dockerfiles/Dockerfile"
  platforms  = ["linux/amd64", "linux/arm64"]
  args = {
    MOELAB_COMMIT     = COMMIT
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
  }
  labels = {
    "org.opencontainers.image.title"       = "moelab"
    "org.opencontainers.image.description" = "Fused Mixture-of-Experts kernels for CPUs and the laboratory that measures them"
    "org.opencontainers.image.licenses"    = "Apache-2.0"
    "org.opencontainers.image.revision"    = COMMIT
    "org.opencontainers.image.version"     = VERSION
  }
}

target "lab" {
  inherits = ["common"]
  target   = "lab"
  tags     = ["${TAG}:lab"]
}

target "test" {
  inherits = ["common"]
  target   = "test"
  tags     = ["${TAG}:test"]
}

target "ab" {
  inherits = ["common"]
  target   = "ab"
  tags     = ["${TAG}:ab"]
}
