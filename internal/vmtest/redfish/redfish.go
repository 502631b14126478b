// Package redfish is the BMC of a virtual node: a small Redfish service
// (DSP0266) over HTTPS that switches a QEMU machine on and off, for tests and
// for practice. Its resources have the shape of the DSP0268 schemas; what the
// makers of real BMCs do differently can be switched on (Manners).
package redfish

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Machine is what the BMC looks after. *vmtest.Node is one.
type Machine interface {
	Running() bool
	PowerOn() error
	PowerOff() error
	Reset() error
	Shutdown() error
	NetworkOnce(bool)
}

// Manners are ways of a BMC that some makers' have.
type Manners struct {
	Vendor     string   // "" is "Turnout"
	Settings   bool     // the boot override goes to a pending-settings resource
	NeedETag   bool     // changes need If-Match
	NeedMode   bool     // an override without a mode is stored as Legacy
	RefuseMode bool     // an override with a mode is refused
	Resets     []string // reset types, nil for all
	NoSessions bool     // basic authentication only
	Baseboard  bool     // a second system, as HGX machines have
	OldSensors bool     // Thermal and Power in place of Sensors
	Busy       int      // so many first requests are answered 503
}

// BMC is the service. Make one with New.
type BMC struct {
	Machine  Machine
	User     string
	Password string
	Manners  Manners

	mu       sync.Mutex
	sessions map[string]string // id -> token
	opened   int
	boot     boot
	etag     int
	firmware map[string]string
	uploads  [][]byte
	busy     int
}

type boot struct {
	Enabled string `json:"BootSourceOverrideEnabled"`
	Mode    string `json:"BootSourceOverrideMode,omitempty"`
	Target  string `json:"BootSourceOverrideTarget"`
}

// New makes the BMC of a machine.
func New(m Machine, user, password string, manners Manners) *BMC {
	return &BMC{Machine: m, User: user, Password: password, Manners: manners, sessions: map[string]string{},
		boot: boot{"Disabled", "UEFI", "None"}, firmware: map[string]string{"BIOS": "1.0", "BMC": "2.10", "GPU1": "96.00.5E.00.01"}, busy: manners.Busy}
}

// Sessions returns how many sessions are open, and how many ever were.
func (b *BMC) Sessions() (open, ever int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sessions), b.opened
}

// Boot returns the boot override: Enabled and Target.
func (b *BMC) Boot() (enabled, target string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.boot.Enabled, b.boot.Target
}

// Uploads returns the firmware files that were sent.
func (b *BMC) Uploads() [][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.uploads
}

// ServeHTTP implements http.Handler.
func (b *BMC) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimRight(r.URL.Path, "/")
	switch {
	case b.isBusy():
		w.Header().Set("Retry-After", "0")
		refuse(w, http.StatusServiceUnavailable, "starting")
	case path == "/redfish/v1" && r.Method == http.MethodGet:
		b.show(w, b.root())
	case path == "/redfish/v1/SessionService/Sessions" && r.Method == http.MethodPost:
		b.login(w, r)
	case !b.allowed(r):
		refuse(w, http.StatusUnauthorized, "not logged in")
	case strings.HasPrefix(path, "/redfish/v1/SessionService/Sessions/") && r.Method == http.MethodDelete:
		b.logout(w, path)
	case r.Method == http.MethodGet:
		b.read(w, path)
	case r.Method == http.MethodPatch:
		b.patch(w, r, path)
	case path == "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset":
		b.reset(w, r)
	case path == "/redfish/v1/UpdateService/upload":
		b.upload(w, r)
	default:
		refuse(w, http.StatusMethodNotAllowed, "no such action")
	}
}

func (b *BMC) isBusy() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy > 0 {
		b.busy--
		return true
	}
	return false
}

// mostSessions is how many may be open: real BMCs have as few.
const mostSessions = 4

func (b *BMC) login(w http.ResponseWriter, r *http.Request) {
	if b.Manners.NoSessions {
		refuse(w, http.StatusNotFound, "no sessions here")
		return
	}
	var in struct{ UserName, Password string }
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&in); err != nil || !b.known(in.UserName, in.Password) {
		refuse(w, http.StatusUnauthorized, "the user or password is wrong")
		return
	}
	var id [16]byte
	rand.Read(id[:]) //nolint:errcheck // never fails since Go 1.24
	name, token := hex.EncodeToString(id[:4]), hex.EncodeToString(id[4:])
	b.mu.Lock()
	full := len(b.sessions) >= mostSessions
	if !full {
		b.sessions[name] = token
		b.opened++
	}
	b.mu.Unlock()
	if full {
		refuse(w, http.StatusServiceUnavailable, "too many sessions")
		return
	}
	w.Header().Set("X-Auth-Token", token)
	w.Header().Set("Location", "/redfish/v1/SessionService/Sessions/"+name)
	w.WriteHeader(http.StatusCreated)
}

func (b *BMC) known(user, password string) bool {
	return subtle.ConstantTimeCompare([]byte(user), []byte(b.User))&subtle.ConstantTimeCompare([]byte(password), []byte(b.Password)) == 1
}

func (b *BMC) allowed(r *http.Request) bool {
	if user, password, ok := r.BasicAuth(); ok {
		return b.Manners.NoSessions && b.known(user, password)
	}
	token := r.Header.Get("X-Auth-Token")
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.sessions {
		if token != "" && subtle.ConstantTimeCompare([]byte(t), []byte(token)) == 1 {
			return true
		}
	}
	return false
}

func (b *BMC) logout(w http.ResponseWriter, path string) {
	b.mu.Lock()
	delete(b.sessions, path[strings.LastIndexByte(path, '/')+1:])
	b.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// show answers with a resource.
func (b *BMC) show(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if o, ok := v.(object); ok && o["@odata.etag"] != nil {
		w.Header().Set("ETag", o["@odata.etag"].(string))
	}
	_ = json.NewEncoder(w).Encode(v)
}

// refuse answers with an error as DSP0266 section "Error responses" has it.
func refuse(w http.ResponseWriter, status int, msg string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object{"error": object{"code": "Base.1.8.GeneralError", "message": "see @Message.ExtendedInfo",
		"@Message.ExtendedInfo": []object{{"MessageId": "Base.1.8.GeneralError", "Message": msg}}}})
}

func (b *BMC) reset(w http.ResponseWriter, r *http.Request) {
	var in struct{ ResetType string }
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&in); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if err := b.doReset(in.ResetType); err != nil {
		refuse(w, http.StatusConflict, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (b *BMC) doReset(how string) error {
	ok := false
	for _, t := range b.resets() {
		ok = ok || t == how
	}
	if !ok {
		return errors.New("reset type " + how + " is not allowed")
	}
	switch how {
	case "On", "ForceOn":
		return b.on()
	case "ForceOff":
		return b.Machine.PowerOff()
	case "GracefulShutdown", "PushPowerButton":
		return b.Machine.Shutdown()
	case "ForceRestart", "PowerCycle":
		return errors.Join(b.Machine.PowerOff(), b.on())
	}
	return errors.New("reset type " + how + " is not known")
}

// on starts the machine with its override, which is used up by that.
func (b *BMC) on() error {
	b.mu.Lock()
	network := b.boot.Enabled == "Once" && (b.boot.Target == "Pxe" || b.boot.Target == "UefiHttp")
	if b.boot.Enabled == "Once" {
		b.boot, b.etag = boot{"Disabled", "UEFI", "None"}, b.etag+1
	}
	b.mu.Unlock()
	b.Machine.NetworkOnce(network)
	return b.Machine.PowerOn()
}

func (b *BMC) resets() []string {
	if b.Manners.Resets != nil {
		return b.Manners.Resets
	}
	return []string{"On", "ForceOff", "GracefulShutdown", "ForceRestart", "PowerCycle"}
}
