# Added to docker-bake.hcl by ci/images.py on a machine that reaches no registry of images: the pinned base is replaced
# by one made from Debian packages, torch's wheel comes from a folder, and the machine's CA bundle and pip configuration
# are lent to the steps that fetch packages (they stay out of the images).

variable "BASE_FOLDER" {}
variable "WHEELS_FOLDER" {}
variable "CA_FILE" {}
variable "PIPCONF_FILE" {}

target "local-base" {
  context           = BASE_FOLDER
  platforms         = ["linux/amd64", "linux/arm64"]
  dockerfile-inline = "FROM scratch\nARG TARGETARCH\nADD base-$${TARGETARCH}.tar /\nCMD [\"bash\"]\n"
}

target "common" {
  contexts = {
    "debian:bookworm-20260803-slim@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241" = "target:local-base"
    wheels = WHEELS_FOLDER
  }
  secret = [
    "type=file,id=ca,src=${CA_FILE}",
    "type=file,id=pipconf,src=${PIPCONF_FILE}",
  ]
}
