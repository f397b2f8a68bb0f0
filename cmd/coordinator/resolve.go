package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/atmostonce/coordinator/internal/node"
)

// raw is a flag's text as it was given: flags are parsed first and count last.
type raw struct {
	text   string
	set    bool
	again  bool // it was given more than once
	expect string
}

// Set implements pflag.Value.
func (r *raw) Set(text string) error {
	r.text, r.set, r.again = text, true, r.set
	return nil
}

// String implements pflag.Value.
func (r *raw) String() string { return r.text }

// Type implements pflag.Value.
func (r *raw) Type() string { return r.expect }

// addFlags adds a flag for each setting.
func addFlags(set *pflag.FlagSet, flags map[string]*raw) {
	add := func(name, usage, kind string, isSwitch bool) {
		r := &raw{expect: kind}
		flags[name] = r
		f := set.VarPF(r, name, "", usage)
		if isSwitch {
			f.NoOptDefVal = "true"
		}
	}
	add(configSetting, "YAML file with settings.", "file", false)
	for _, section := range table(defaults()) {
		for _, s := range section.settings {
			_, isSwitch := s.value.(onOff)
			add(s.name, s.usage, s.value.kind(), isSwitch)
		}
	}
}

// resolve returns the settings: each from its flag, else its environment variable,
// else the YAML file, else its default. The environment is as [os.Environ] has it; a
// variable that is empty is not set.
func resolve(flags map[string]*raw, variables []string) (*options, error) {
	o := defaults()
	sections := table(o)
	if err := checkEnvironment(variables, sections); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		if flags[name].again {
			// The last of two directories would win silently otherwise.
			return nil, fmt.Errorf("--%s is given twice and takes one value", name)
		}
	}
	if config := flags[configSetting]; config.set && config.text == "" {
		// As of a variable in a script that is not set: the node would be one by itself.
		return nil, fmt.Errorf("--%s is empty: name a file, or leave it out", configSetting)
	}
	environment := lookup(variables)
	path, source := flags[configSetting].text, "--"+configSetting
	if variable := (setting{name: configSetting}).environment(); !flags[configSetting].set {
		path = environment(variable)
		source = variable
	}
	var file map[string]string
	if path != "" {
		var err error
		if file, err = readYAML(path, sections); err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
	}
	for _, section := range sections {
		for _, s := range section.settings {
			var given, from string
			if inFile, ok := file[s.name]; ok {
				given, from = inFile, path
			}
			if variable := environment(s.environment()); variable != "" {
				given, from = variable, s.environment()
			}
			if f := flags[s.name]; f.set {
				given, from = f.text, "--"+s.name
			}
			if from == "" {
				continue
			}
			o.from[s.name] = from
			if _, lists := s.value.(peers); lists && strings.TrimSpace(given) == "" {
				// As of a variable in a script that is not set: a node that was meant to join others
				// would be a cluster by itself, and admit what they have admitted.
				return nil, o.explain(&node.SettingError{Setting: s.name, Problem: "is empty: list the nodes, or leave it out for a node by itself"})
			}
			if err := s.value.parse(given); err != nil {
				return nil, o.explain(&node.SettingError{Setting: s.name, Problem: err.Error()})
			}
		}
	}
	// The node checks again; this way it is a matter of flags and not of starting.
	if err := o.node.Validate(); err != nil {
		var wrong *node.SettingError
		if errors.As(err, &wrong) {
			return nil, o.explain(wrong)
		}
		return nil, err
	}
	return o, nil
}

// explain says where the value of a wrong setting is from, unless that is its flag.
func (o *options) explain(wrong *node.SettingError) error {
	from := o.from[wrong.Setting]
	if from == "" || from == "--"+wrong.Setting {
		return fmt.Errorf("--%s %s", wrong.Setting, wrong.Problem)
	}
	return fmt.Errorf("%s in %s %s", wrong.Setting, from, wrong.Problem)
}

// yamlBytesMax bounds the settings file.
const yamlBytesMax = 1 << 20

// readYAML returns the settings in a file: one mapping of names to plain values. Peers may
// be a mapping of their own.
func readYAML(path string, sections []section) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(file, yamlBytesMax+1))
	if err != nil {
		return nil, err
	}
	if len(content) > yamlBytesMax {
		return nil, fmt.Errorf("%s is longer than %d bytes", path, yamlBytesMax)
	}
	var document yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(string(content)))
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil // nothing but comments
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var second yaml.Node
	if !errors.Is(decoder.Decode(&second), io.EOF) {
		return nil, fmt.Errorf("%s: more than one document", path)
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s: line %d: must be a mapping of settings to values", path, root.Line)
	}
	settings := make(map[string]string)
	for i := 0; i < len(root.Content); i += 2 {
		key, content := root.Content[i], root.Content[i+1]
		s, ok := find(sections, key.Value)
		if !ok {
			return nil, fmt.Errorf("%s: line %d: unknown setting %q", path, key.Line, key.Value)
		}
		if _, twice := settings[s.name]; twice {
			return nil, fmt.Errorf("%s: line %d: %s is set twice", path, key.Line, s.name)
		}
		given, err := plainText(s, content)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %s %w", path, content.Line, s.name, err)
		}
		settings[s.name] = given
	}
	return settings, nil
}

// find returns the setting of that name; a YAML key may have underscores for dashes.
func find(sections []section, name string) (setting, bool) {
	name = strings.ReplaceAll(name, "_", "-")
	for _, section := range sections {
		for _, s := range section.settings {
			if s.name == name {
				return s, true
			}
		}
	}
	return setting{}, false
}

func plainText(s setting, content *yaml.Node) (string, error) {
	_, isPeers := s.value.(peers)
	switch {
	case content.Kind == yaml.ScalarNode && content.Tag == "!!null":
		return "", errors.New("has no value")
	case content.Kind == yaml.ScalarNode:
		return content.Value, nil
	case content.Kind == yaml.MappingNode && isPeers:
		var entries []string
		for i := 0; i < len(content.Content); i += 2 {
			entries = append(entries, content.Content[i].Value+"="+content.Content[i+1].Value)
		}
		return strings.Join(entries, ","), nil
	}
	return "", errors.New("must be a plain value")
}
