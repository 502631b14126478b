package rootfs

import "testing"

func TestModuleFilter(t *testing.T) {
	f := newModuleFilter([]string{"drivers/gpu/drm/", "!drivers/gpu/drm/drm.ko", "sound/"})
	const kernel = "usr/lib/modules/6.1.0-50-amd64/kernel/"
	for name, want := range map[string]bool{
		kernel + "drivers/gpu/drm/amd/amdgpu.ko":                             true,
		kernel + "drivers/gpu/drm/drm.ko":                                    false,
		kernel + "drivers/gpu/drm/drm_kms_helper.ko":                         true,
		kernel + "sound/soundcore.ko":                                        true,
		kernel + "drivers/net/tun.ko":                                        false,
		"usr/lib/modules/6.1.0-50-amd64/updates/dkms/nvidia-current-open.ko": false,
		"usr/share/doc/sound/README":                                         false,
	} {
		if got := f.excludes(name); got != want {
			t.Errorf("excludes(%s) = %v, want %v", name, got, want)
		}
	}
}
