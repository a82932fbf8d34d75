"""The manifests of examples/cluster: Kubernetes' schema and the models of JobSet and Kubeflow Trainer take them,
their policies name our final exit codes, and their commands train with the variables that pods get."""
import copy
import os
import re

import end_to_end
import jsonschema
import kubernetes_validate
import yaml
from end_to_end import BIN, SOURCE, EndToEnd
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
from ports import free_port

FOLDER = f"{SOURCE}/examples/cluster"
OLDEST, NEWEST = "1.31", kubernetes_validate.latest_version()  # podFailurePolicy is stable from 1.31 on.


def documents(name):
    with open(f"{FOLDER}/{name}", encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def check_core(document):
    for version in (OLDEST, NEWEST):
        kubernetes_validate.validate(document, version, strict=True)


def check_model(model, document):
    """Raises ValueError for what the model does not take: it drops keys that it does not know."""
    kept = model.from_dict(copy.deepcopy(document)).to_dict()
    if kept != document:
        raise ValueError(f"{kept} is what is known of {document}")


def job_of(job_set):
    """The Job that the JobSet's only replicated job makes."""
    [replicated] = job_set["spec"]["replicatedJobs"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": replicated["name"]},
            "spec": replicated["template"]["spec"]}


def pod_of(job):
    return job["spec"]["template"]["spec"]


def final_codes():
    """Exit codes after which another start cannot help, without those of a job that is done or that its user
    stopped."""
    with open(f"{SOURCE}/launcher/exit_table.h", encoding="utf-8") as file:
        rows = re.findall(r'\{(\d+), "[^"]*",\s*Restart::kNever\}', file.read())
    return sorted({int(code) for code in rows} - {0, 130})


class Manifests(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.service, cls.job = documents("kubernetes-job.yaml")
        [cls.job_set] = documents("kubernetes-jobset.yaml")
        [cls.train_job] = documents("kubernetes-trainjob.yaml")

    def test_kubernetes_schema_takes_them(self):
        for document in (self.service, self.job, job_of(self.job_set)):
            check_core(document)

    def test_the_models_of_jobset_and_trainer_take_them(self):
        check_model(JobsetV1alpha2JobSet, self.job_set)
        check_model(TrainerV1alpha1TrainJob, self.train_job)

    def test_a_wrong_manifest_is_refused(self):
        wrong = copy.deepcopy(self.job)
        wrong["spec"]["podFailurePolicys"] = wrong["spec"].pop("podFailurePolicy")
        self.assertRaises(jsonschema.ValidationError, check_core, wrong)
        wrong = copy.deepcopy(self.job)
        wrong["spec"]["completions"] = "2"
        self.assertRaises(jsonschema.ValidationError, check_core, wrong)
        for model, document in ((JobsetV1alpha2JobSet, self.job_set), (TrainerV1alpha1TrainJob, self.train_job)):
            wrong = copy.deepcopy(document)
            wrong["spec"]["replicas"] = 1
            self.assertRaises(ValueError, check_model, model, wrong)
        wrong = copy.deepcopy(self.train_job)
        wrong["spec"]["trainer"]["numNodes"] = "two"
        self.assertRaises(ValueError, check_model, TrainerV1alpha1TrainJob, wrong)

    def test_policies_name_our_final_exit_codes_and_a_container_that_is_there(self):
        for job in (self.job, job_of(self.job_set)):
            rules = job["spec"]["podFailurePolicy"]["rules"]
            self.assertEqual([rule["action"] for rule in rules], ["Ignore", "FailJob"])
            codes = rules[1]["onExitCodes"]
            self.assertEqual(codes["operator"], "In")
            self.assertEqual(codes["values"], final_codes())
            self.assertEqual([codes["containerName"]], [c["name"] for c in pod_of(job)["containers"]])
            self.assertEqual(pod_of(job)["restartPolicy"], "Never", "podFailurePolicy needs it")
            self.assertEqual(job["spec"]["completionMode"], "Indexed")
            self.assertEqual(job["spec"]["completions"], job["spec"]["parallelism"])

    def test_pods_have_the_names_at_which_nodes_meet(self):
        name = self.job["metadata"]["name"]
        self.assertEqual(self.service["metadata"]["name"], name)
        self.assertEqual(pod_of(self.job)["subdomain"], name)
        self.assertEqual(self.service["spec"]["selector"], {"batch.kubernetes.io/job-name": name})
        self.assertEqual(self.service["spec"]["clusterIP"], "None")
        self.assertNotIn("network", self.job_set["spec"], "the service has the JobSet's name")

    def test_pods_have_time_to_save(self):
        for pod in (pod_of(self.job), pod_of(job_of(self.job_set)), self.patched_pod()):
            for command in self.commands():
                grace = int(command[command.index("--stop-grace") + 1])
                self.assertLess(grace, pod["terminationGracePeriodSeconds"])

    def patched_pod(self):
        [patch] = self.train_job["spec"]["runtimePatches"]
        [replicated] = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        return replicated["template"]["spec"]["template"]["spec"]

    def commands(self):
        return [pod_of(self.job)["containers"][0]["command"],
                pod_of(job_of(self.job_set))["containers"][0]["command"],
                self.train_job["spec"]["trainer"]["command"]]

    def train(self, name, command, variables_of, said):
        """Runs the command of each pod of a manifest on this machine, with the variables of that pod and an
        address in place of the name of pod 0, which only a cluster's name server knows."""
        port = free_port()
        place = f"{self.folder}/{name}"
        os.makedirs(f"{place}/work")
        os.symlink(self.config, f"{place}/work/config.json")
        with open(os.open(f"{place}/token", os.O_CREAT | os.O_WRONLY, 0o400), "wb") as file:
            file.write(os.urandom(32))
        words = [re.sub(r"^/work/", f"{place}/work/", re.sub(r"^/token/token$", f"{place}/token", word))
                 for word in command]
        words = ["1" if before == "--nproc-per-node" else word for before, word in zip([""] + words, words)]
        pods = [self.start([f"{BIN}/{words[0]}", *words[1:]],
                           {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
                            "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port), **variables_of(pod)})
                for pod in range(2)]
        for pod, process in enumerate(pods):
            result = self.finish(process)
            self.assertEqual(result.code, 0, result.output)
            self.assertIn(f"dtrain: node {pod} of 2 by {said}; nodes meet at 127.0.0.1:{port}\n", result.output)
        run_dir = f"{place}/work/runs/train"
        self.assertEqual(sorted(self.losses(run_dir)), list(range(1, 11)))
        self.assertTrue(os.path.exists(f"{run_dir}/metrics/rank-1.jsonl"))

    def test_the_indexed_job_trains(self):
        self.train("job", self.commands()[0],
                   lambda pod: {"JOB_COMPLETION_INDEX": str(pod), "HOSTNAME": f"train-{pod}"}, "Indexed Job")

    def test_the_jobset_trains(self):
        [variable] = pod_of(job_of(self.job_set))["containers"][0]["env"]
        self.assertEqual(variable["valueFrom"]["fieldRef"]["fieldPath"],
                         "metadata.labels['jobset.sigs.k8s.io/jobset-name']")
        self.train("jobset", self.commands()[1],
                   lambda pod: {"JOB_COMPLETION_INDEX": str(pod), "HOSTNAME": f"train-node-0-{pod}",
                                variable["name"]: self.job_set["metadata"]["name"]}, "JobSet train")

    def test_the_trainjob_trains(self):
        nodes = self.train_job["spec"]["trainer"]["numNodes"]
        self.train("trainjob", self.commands()[2],
                   lambda pod: {"JOB_COMPLETION_INDEX": str(pod), "HOSTNAME": f"train-node-0-{pod}",
                                "PET_NNODES": str(nodes), "PET_NODE_RANK": str(pod),
                                "PET_NPROC_PER_NODE": "1"}, "Indexed Job")


if __name__ == "__main__":
    end_to_end.main()
